#include "frames.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace braidfs::world {

namespace {

std::string name_of(Op op) {
  switch (op) {
    case Op::kPing:
      return "PING";
    case Op::kRead:
      return "READ";
    case Op::kWrite:
      return "WRITE";
    case Op::kSync:
      return "SYNC";
    case Op::kTruncate:
      return "TRUNCATE";
    case Op::kPunch:
      return "PUNCH";
    case Op::kSeek:
      return "SEEK";
    case Op::kStat:
      return "STAT";
    case Op::kDelete:
      return "DELETE";
    case Op::kFence:
      return "FENCE";
    case Op::kRaiseEpoch:
      return "RAISE_EPOCH";
    case Op::kDropNames:
      return "DROP_NAMES";
    default:
      return "op " + std::to_string(static_cast<int>(op));
  }
}

}  // namespace

Bytes Frame::packed() {
  header.body_length = static_cast<uint32_t>(body.size());
  header.payload_length = static_cast<uint32_t>(payload.size());
  header.body_checksum = body.empty() ? 0 : xxh3(body);
  seal(header);
  const auto head = std::as_bytes(std::span(&header, 1));
  Bytes all(head.begin(), head.end());
  all.insert(all.end(), body.begin(), body.end());
  all.insert(all.end(), payload.begin(), payload.end());
  return all;
}

std::optional<Frame> FrameCutter::next() {
  if (held_.size() < kHeaderSize) return std::nullopt;
  const DecodedHeader decoded = decode_header(std::span(held_).first(kHeaderSize));
  if (decoded.fault != FrameFault::kOk) throw std::logic_error("a program sent a broken frame");
  Frame frame{decoded.header, {}, {}};
  const size_t length = kHeaderSize + frame.header.body_length + frame.header.payload_length;
  if (held_.size() < length) return std::nullopt;
  const auto body = held_.begin() + kHeaderSize;
  const auto payload = body + frame.header.body_length;
  frame.body.assign(body, payload);
  frame.payload.assign(payload, payload + frame.header.payload_length);
  held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(length));
  return frame;
}

std::string name_of(const Frame& frame) {
  const FrameHeader& header = frame.header;
  std::array<char, 160> text;
  if (frame.is_reply()) {
    std::snprintf(text.data(), text.size(), "%s reply %llx status %u incarnation %llu bytes %u",
                  name_of(frame.op()).c_str(), static_cast<unsigned long long>(header.request_id),
                  header.status, static_cast<unsigned long long>(header.offset),
                  header.payload_length);
  } else {
    uint64_t first = 0;
    if (frame.payload.size() >= sizeof(first))
      std::memcpy(&first, frame.payload.data(), sizeof(first));
    std::snprintf(text.data(), text.size(),
                  "%s %llx target %u object %llu.%x at %llu+%u epoch %u value %llu",
                  name_of(frame.op()).c_str(), static_cast<unsigned long long>(header.request_id),
                  header.target, static_cast<unsigned long long>(header.file_id),
                  header.stripe_index, static_cast<unsigned long long>(header.offset),
                  header.length, header.epoch, static_cast<unsigned long long>(first));
  }
  return text.data();
}

}  // namespace braidfs::world
