// Frames as bytes on a wire: taken apart, put together again, and named for the trace.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::world {

using Bytes = std::vector<std::byte>;

struct Frame {
  FrameHeader header;
  Bytes body;
  Bytes payload;

  Op op() const noexcept { return static_cast<Op>(header.op); }
  bool is_reply() const noexcept { return (header.flags & kFlagReply) != 0; }
  Status status() const noexcept { return static_cast<Status>(header.status); }
  // With lengths and checksums as a correct peer sets them.
  Bytes packed();
};

// The bytes of one direction of a connection, as they come.
class FrameCutter {
 public:
  void add(std::span<const std::byte> bytes) {
    held_.insert(held_.end(), bytes.begin(), bytes.end());
  }
  std::optional<Frame> next();

 private:
  Bytes held_;
};

std::string name_of(const Frame& frame);

}  // namespace braidfs::world
