// Parses the bytes of one request of the kernel. Pure: no I/O, any thread.
//
// Everything is checked against the length that was read: a request whose fixed part, names or
// payload do not fit is Malformed and never reaches a handler or pyfuse3 (libfuse checks nothing).
// lane.h passes the result to its handler.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "fuse/request.h"

namespace braidfs::fuse {

// The longest request for pyfuse3, whose read buffer is 128 KiB + 4 KiB.
inline constexpr size_t kUpcallBytesMax = (128u << 10) + 4096;
// The longest answer to READDIRPLUS.
inline constexpr uint32_t kReaddirBytesMax = 128u << 10;

// FORGET or BATCH_FORGET: `entries` has fuse_forget_one records; for FORGET it is empty, and nodeid
// and lookups are set.
struct ForgetRequest {
  uint64_t nodeid = 0;
  uint64_t lookups = 0;
  std::span<const std::byte> entries;
};

struct InterruptRequest {
  uint64_t unique = 0;  // of the INTERRUPT itself: EAGAIN is answered to it
  uint64_t target = 0;  // of the request that was interrupted
};

// Bits of UpcallRequest, which goes to Python whole.
inline constexpr uint32_t kUpcallKillSuidgid = 1u << 0;
inline constexpr uint32_t kUpcallOpenReadOnly = 1u << 1;
inline constexpr uint32_t kUpcallOpenDirect = 1u << 2;
inline constexpr uint32_t kUpcallSetsTimes = 1u << 3;  // to given times, not both to now
inline constexpr uint32_t kUpcallShown = kUpcallKillSuidgid | kUpcallSetsTimes;  // to Python

struct UpcallRequest {
  RequestHead head;
  uint32_t opcode = 0;
  uint32_t bits = 0;
  std::span<const std::byte> bytes;
  bool is_call = false;  // pyfuse3 does not know it: a CALL event, answered by Bridge::answer()
};

// To be answered with `error` (0: success without a body) at once; reaches no handler.
struct AnsweredRequest {
  uint64_t unique = 0;
  int error = 0;
};

// A request that can neither be handled nor answered.
struct Malformed {};

using Request =
    std::variant<Malformed, AnsweredRequest, ReadRequest, WriteRequest, FlushRequest,
                 ReleaseRequest, FsyncRequest, ForgetRequest, InterruptRequest, UpcallRequest>;

// `bytes` and `payload` are exactly what one read(2) of the channel returned; the payload is that
// of a WRITE that was read separately from its head, or empty.
Request parse_request(Channel channel, std::span<const std::byte> bytes, uint32_t max_write,
                      std::span<const std::byte> payload = {}) noexcept;

}  // namespace braidfs::fuse
