// One message of the RDMA transport: the content of a SEND.
//
//   MessageHead | segments | frame header and body (or a part of them) | short payload
//
// A short payload of a frame travels in the message. A longer one is moved by the acceptor of the
// connection: it READs the payload of a request from where the initiator says, and it WRITEs the
// payload of a reply to the place that the request named, before it SENDs the reply. So only
// initiators expose memory, and a payload's bytes are in place when the message about them arrives.
//
// Pure: ANY THREAD. parse() checks everything that the peer claims.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::rdma {

inline constexpr uint32_t kSlotSize = 8192;
inline constexpr uint32_t kShortPayloadMax = 4096;
inline constexpr uint32_t kBlockSize = 128u << 10;  // a block of bulk memory
inline constexpr uint32_t kSegmentsMax = limits::kFramePayloadLengthMax / kBlockSize;
// Messages that a peer may have under way to this end: kCreditsMax while there are few peers, never
// fewer than kCreditsMin, which is what the longest frame needs.
inline constexpr uint32_t kCreditsMax = 64;
inline constexpr uint32_t kCreditsMin = 16;

struct Segment {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t length = 0;
};
static_assert(sizeof(Segment) == 16);

enum class Bulk : uint16_t {
  kNone = 0,
  kFetch = 1,    // the segments hold this frame's payload, which is to be READ
  kPlace = 2,    // the segments are where the payload of the reply may be written
  kWritten = 3,  // the payload was written to the place that the request named
};

struct MessageHead {
  uint32_t magic = kMagic;
  uint16_t kind = 0;         // a Kind
  uint16_t credits = 0;      // how many of the peer's messages were consumed since the last message
  uint32_t head_length = 0;  // length of the part of the frame's header and body that is here
  uint32_t head_rest = 0;    // length of the part that follows in other messages
  uint32_t short_length = 0;
  uint16_t segment_count = 0;
  uint16_t bulk = 0;
  uint32_t bulk_length = 0;
  // How many of the peer's frames with Bulk::kFetch were fetched since the connection began.
  uint32_t fetched = 0;

  enum Kind : uint16_t { kFrame = 1, kMore = 2, kCredits = 3 };
  static constexpr uint32_t kMagic = 0x4d445242;  // "BRDM" in little endian
};
static_assert(sizeof(MessageHead) == 32);

struct Message {
  MessageHead head;
  std::vector<Segment> segments;
  std::span<const std::byte> frame_head;
  std::span<const std::byte> payload;
};

// Reads and checks a message. Nothing when the peer broke the protocol: lengths that do not add up,
// or unknown kinds.
inline std::optional<Message> parse(std::span<const std::byte> bytes) {
  Message message;
  MessageHead& head = message.head;
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  const bool known = head.magic == MessageHead::kMagic && head.kind >= MessageHead::kFrame &&
                     head.kind <= MessageHead::kCredits &&
                     head.bulk <= static_cast<uint16_t>(Bulk::kWritten);
  if (!known || head.segment_count > kSegmentsMax || head.head_length > bytes.size() ||
      head.short_length > kShortPayloadMax || head.bulk_length > limits::kFramePayloadLengthMax ||
      head.head_rest > limits::kFrameBodyLengthMax) {
    return std::nullopt;
  }
  const size_t segment_bytes = head.segment_count * sizeof(Segment);
  if (sizeof head + segment_bytes + head.head_length + head.short_length != bytes.size()) {
    return std::nullopt;
  }
  message.segments.resize(head.segment_count);
  if (segment_bytes > 0) {
    std::memcpy(message.segments.data(), bytes.data() + sizeof head, segment_bytes);
  }
  message.frame_head = bytes.subspan(sizeof head + segment_bytes, head.head_length);
  message.payload = bytes.last(head.short_length);
  return message;
}

// Number of work requests that a transfer of `length` bytes between blocks and the peer's segments
// takes. The segments hold at least `length` bytes, and none is empty.
inline size_t piece_count(std::span<const Segment> segments, size_t length) {
  size_t pieces = 0, at = 0, segment = 0, within = 0;
  for (; at < length; ++pieces) {
    const size_t step =
        std::min({kBlockSize - at % kBlockSize, segments[segment].length - within, length - at});
    at += step;
    within += step;
    if (within == segments[segment].length) ++segment, within = 0;
  }
  return pieces;
}

inline uint64_t total_length(std::span<const Segment> segments) {
  uint64_t total = 0;
  for (const Segment& segment : segments) total += segment.length;
  return total;
}

}  // namespace braidfs::rdma
