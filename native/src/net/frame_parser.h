// Turns a stream of bytes into frames. It does no I/O (sans-IO): it says where bytes should go.
//
// The caller receives into the places that wanted() names and reports the count to received().
// Small frames arrive many at a time in the staging buffer. A payload goes straight to the place
// that its sink chose; only the part that arrived in the staging buffer is copied. The header's
// checksum is verified before its lengths are used, and the body's before the sink sees the body.
// The sink verifies the block sums of the payload, because it knows the offset at which they begin.
//
// The body that the sink gets is aligned to 8 bytes and valid only during the call.
//
// Threads: one thread at a time. Invariant: it never holds more than the staging buffer and
// body_length_max bytes.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::net {

enum class Verdict : uint8_t {
  // The payload goes to `bytes`, which are exactly payload_length long.
  kTake,
  // Nobody wants this payload any more: it is skipped, and frame() is not called.
  kDiscard,
  // There is no room now: nothing more is parsed until resume().
  kPause,
  // The peer broke the protocol: its connection is cut.
  kRefuse,
};

struct PayloadPlace {
  Verdict verdict = Verdict::kRefuse;
  std::span<std::byte> bytes{};
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Called before a payload is received, and only for frames that have one. After kPause it is
  // called again.
  virtual PayloadPlace payload_buffer(const FrameHeader& header,
                                      std::span<const std::byte> body) = 0;
  // Called with a whole frame. False cuts the connection. The sink must not destroy the parser or
  // the stream in this call.
  virtual bool frame(const FrameHeader& header, std::span<const std::byte> body,
                     std::span<std::byte> payload) = 0;
};

enum class ParseResult : uint8_t { kMore, kPaused, kFault };

class FrameParser {
 public:
  static constexpr size_t kStagingSize = 32u << 10;

  FrameParser(uint32_t body_length_max, uint32_t payload_length_max);

  // Fills `places` and returns how many are used (1 or 2); returns 0 while paused and after a
  // fault.
  size_t wanted(std::array<iovec, 2>& places) noexcept;
  // Says that `count` bytes arrived. They fill the places in order.
  ParseResult received(size_t count, FrameSink& sink);
  // Continues after kPause: asks the sink again and parses on.
  ParseResult resume(FrameSink& sink);

  bool paused() const noexcept { return state_ == State::kAwaitPlace; }
  // Why parsing stopped. kOk when the sink refused the frame or the body's checksum was wrong.
  FrameFault fault() const noexcept { return fault_; }
  // True when no part of a frame is held: the peer may close here without losing anything.
  bool idle() const noexcept { return state_ == State::kHeader && staged_ == parsed_; }

 private:
  enum class State : uint8_t { kHeader, kBody, kAwaitPlace, kPayload, kFailed };

  std::span<const std::byte> staged() const noexcept;
  ParseResult parse(FrameSink& sink);
  bool step(FrameSink& sink);
  bool take_header();
  bool take_body(FrameSink& sink);
  bool take_place(FrameSink& sink);
  bool take_payload(FrameSink& sink);
  bool deliver(FrameSink& sink);
  bool fail(FrameFault fault = FrameFault::kOk) noexcept;
  std::span<const std::byte> body() const noexcept;

  const uint32_t body_length_max_;
  const uint32_t payload_length_max_;
  State state_ = State::kHeader;
  FrameFault fault_ = FrameFault::kOk;
  FrameHeader header_{};
  std::unique_ptr<std::byte[]> staging_;
  size_t staged_ = 0;  // end of the received bytes in staging_
  size_t parsed_ = 0;  // begin of the bytes that are not parsed yet
  std::vector<uint64_t> body_;
  size_t body_filled_ = 0;
  std::span<std::byte> payload_{};
  size_t payload_filled_ = 0;
  bool discard_ = false;
};

}  // namespace braidfs::net
