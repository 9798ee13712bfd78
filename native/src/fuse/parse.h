// From the bytes of one request of the kernel to what a lane does with it. Pure: no I/O, any
// thread.
//
// Everything is checked against the length that was read: a request whose fixed part, names or
// payload do not fit is Malformed and never reaches a handler or pyfuse3 (libfuse checks nothing).
// Not here: who handles the result (lane.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "fuse/request.h"

namespace braidfs::fuse {

// The longest request that is passed on to pyfuse3: its read buffer is 128 KiB + 4 KiB.
inline constexpr size_t kUpcallBytesMax = (128u << 10) + 4096;
// At most this much is answered to READDIRPLUS.
inline constexpr uint32_t kReaddirBytesMax = 128u << 10;

// FORGET or BATCH_FORGET: `entries` holds fuse_forget_one records, or is empty and the one is in
// `one`.
struct ForgetRequest {
  uint64_t nodeid = 0;
  uint64_t lookups = 0;
  std::span<const std::byte> entries;
};

struct InterruptRequest {
  uint64_t unique = 0;  // of the INTERRUPT itself: what EAGAIN is answered to
  uint64_t target = 0;  // of the request that was interrupted
};

// Goes to Python whole. bits: kUpcall*.
inline constexpr uint32_t kUpcallKillSuidgid = 1u << 0;
inline constexpr uint32_t kUpcallOpenReadOnly = 1u << 1;
inline constexpr uint32_t kUpcallOpenDirect = 1u << 2;
inline constexpr uint32_t kUpcallSetsTimes = 1u << 3;  // to given ones, not both to now
inline constexpr uint32_t kUpcallShown = kUpcallKillSuidgid | kUpcallSetsTimes;  // to Python

struct UpcallRequest {
  RequestHead head;
  uint32_t opcode = 0;
  uint32_t bits = 0;
  std::span<const std::byte> bytes;
  bool is_call = false;  // pyfuse3 does not know it: a CALL event, answered by Bridge::answer()
};

// Answered with `error` (0: success without a body) at once; never reaches a handler.
struct AnsweredRequest {
  uint64_t unique = 0;
  int error = 0;
};

// Nothing that can be acted upon, and nothing that can be answered.
struct Malformed {};

using Request =
    std::variant<Malformed, AnsweredRequest, ReadRequest, WriteRequest, FlushRequest,
                 ReleaseRequest, FsyncRequest, ForgetRequest, InterruptRequest, UpcallRequest>;

// `bytes` and `payload` are exactly what one read(2) of the channel returned; the payload is that
// of a WRITE that was read apart from its head, or empty.
Request parse_request(Channel channel, std::span<const std::byte> bytes, uint32_t max_write,
                      std::span<const std::byte> payload = {}) noexcept;

}  // namespace braidfs::fuse
