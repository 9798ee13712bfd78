#include "net/frame_parser.h"

#include <algorithm>
#include <cstring>

namespace braidfs::net {

FrameParser::FrameParser(uint32_t body_length_max, uint32_t payload_length_max)
    : body_length_max_(std::min(body_length_max, limits::kFrameBodyLengthMax)),
      payload_length_max_(std::min(payload_length_max, limits::kFramePayloadLengthMax)),
      staging_(std::make_unique<std::byte[]>(kStagingSize)) {}

std::span<const std::byte> FrameParser::staged() const noexcept {
  return {staging_.get() + parsed_, staged_ - parsed_};
}

size_t FrameParser::wanted(std::array<iovec, 2>& places) noexcept {
  if (state_ == State::kFailed || state_ == State::kAwaitPlace) return 0;
  // Less than a header is left, so the move is cheap.
  if (parsed_ > 0) {
    std::memmove(staging_.get(), staging_.get() + parsed_, staged_ - parsed_);
    staged_ -= parsed_;
    parsed_ = 0;
  }
  size_t count = 0;
  if (state_ == State::kPayload && !discard_) {
    const auto rest = payload_.subspan(payload_filled_);
    places[count++] = {rest.data(), rest.size()};
  }
  places[count++] = {staging_.get() + staged_, kStagingSize - staged_};
  return count;
}

ParseResult FrameParser::received(size_t count, FrameSink& sink) {
  if (state_ == State::kPayload && !discard_) {
    const size_t direct = std::min(count, payload_.size() - payload_filled_);
    payload_filled_ += direct;
    count -= direct;
  }
  staged_ += count;
  return parse(sink);
}

ParseResult FrameParser::resume(FrameSink& sink) { return parse(sink); }

ParseResult FrameParser::parse(FrameSink& sink) {
  while (step(sink)) {
  }
  if (state_ == State::kFailed) return ParseResult::kFault;
  return state_ == State::kAwaitPlace ? ParseResult::kPaused : ParseResult::kMore;
}

// One step of the state machine. True: it moved on and may be called again.
bool FrameParser::step(FrameSink& sink) {
  switch (state_) {
    case State::kHeader:
      return take_header();
    case State::kBody:
      return take_body(sink);
    case State::kAwaitPlace:
      return take_place(sink);
    case State::kPayload:
      return take_payload(sink);
    case State::kFailed:
      return false;
  }
  return false;
}

bool FrameParser::take_header() {
  if (staged_ - parsed_ < kHeaderSize) return false;
  const DecodedHeader decoded = decode_header(staged());
  if (decoded.fault != FrameFault::kOk) return fail(decoded.fault);
  header_ = decoded.header;
  if (header_.body_length > body_length_max_) return fail(FrameFault::kBodyLength);
  if (header_.payload_length > payload_length_max_) return fail(FrameFault::kPayloadLength);
  parsed_ += kHeaderSize;
  body_filled_ = 0;
  const size_t words = (size_t{header_.body_length} + 7) / 8;
  if (body_.size() < words) body_.resize(words);
  state_ = State::kBody;
  return true;
}

bool FrameParser::take_body(FrameSink& sink) {
  const size_t count = std::min<size_t>(header_.body_length - body_filled_, staged_ - parsed_);
  if (count > 0) {
    auto* place = reinterpret_cast<std::byte*>(body_.data()) + body_filled_;
    std::memcpy(place, staging_.get() + parsed_, count);
    parsed_ += count;
    body_filled_ += count;
  }
  if (body_filled_ < header_.body_length) return false;
  const uint64_t expected = header_.body_length == 0 ? 0 : xxh3(body());
  if (expected != header_.body_checksum) return fail();
  payload_ = {};
  payload_filled_ = 0;
  if (header_.payload_length == 0) return deliver(sink);
  return take_place(sink);
}

bool FrameParser::take_place(FrameSink& sink) {
  const PayloadPlace place = sink.payload_buffer(header_, body());
  state_ = State::kAwaitPlace;
  if (place.verdict == Verdict::kPause) return false;
  if (place.verdict == Verdict::kRefuse) return fail();
  discard_ = place.verdict == Verdict::kDiscard;
  if (!discard_ && place.bytes.size() != header_.payload_length) return fail();
  payload_ = place.bytes;
  payload_filled_ = 0;
  state_ = State::kPayload;
  return true;
}

bool FrameParser::take_payload(FrameSink& sink) {
  const size_t left = header_.payload_length - payload_filled_;
  const size_t count = std::min(left, staged_ - parsed_);
  if (count > 0 && !discard_) {
    std::memcpy(payload_.data() + payload_filled_, staging_.get() + parsed_, count);
  }
  parsed_ += count;
  payload_filled_ += count;
  if (count < left) return false;
  if (!discard_) return deliver(sink);
  state_ = State::kHeader;
  return true;
}

bool FrameParser::deliver(FrameSink& sink) {
  state_ = State::kHeader;
  return sink.frame(header_, body(), payload_) || fail();
}

bool FrameParser::fail(FrameFault fault) noexcept {
  fault_ = fault;
  state_ = State::kFailed;
  return false;
}

std::span<const std::byte> FrameParser::body() const noexcept {
  return {reinterpret_cast<const std::byte*>(body_.data()), header_.body_length};
}

}  // namespace braidfs::net
