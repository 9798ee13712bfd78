// The sending half of RdmaStream.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/rdma_stream.h"

namespace braidfs::rdma {

namespace {

constexpr size_t kCreditsKept = 1;  // kept for a message that only returns credits
constexpr size_t kFetchedUnreportedMax = 4u << 20;
constexpr size_t kMessageRoom = kSlotSize - sizeof(MessageHead);
// The longest frame: its segments, short payload, header and body.
constexpr size_t kFrameMax = kSegmentsMax * sizeof(Segment) + kShortPayloadMax + kHeaderSize +
                             net::StreamLimits{}.body_length_max;
constexpr size_t kMessagesMax = kFrameMax / kMessageRoom + 2;
static_assert(kMessagesMax + kCreditsKept <= kCreditsMin, "the longest frame would wait for ever");
static_assert(kMessagesMax + kSegmentsMax <= Port::kChannelWorkMax,
              "the longest frame would wait for ever");

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

size_t blocks_for(size_t length) { return (length + kBlockSize - 1) / kBlockSize; }

std::vector<std::byte> head_of(net::OutFrame& frame) {
  frame.header.body_length = static_cast<uint32_t>(frame.body.size() + frame.body_tail.size());
  frame.header.payload_length = static_cast<uint32_t>(frame.payload.size());
  std::vector<std::byte> head(kHeaderSize);
  head.reserve(kHeaderSize + frame.header.body_length);
  append(head, frame.body);
  append(head, frame.body_tail);
  const auto body = std::span<const std::byte>(head).subspan(kHeaderSize);
  frame.header.body_checksum = body.empty() ? 0 : xxh3(body);
  seal(frame.header);
  std::memcpy(head.data(), &frame.header, kHeaderSize);
  return head;
}

}  // namespace

bool RdmaStream::send(net::OutFrame&& frame) {
  if (cut_) return false;
  if (queue_.size() >= limits_.frames_queued_max ||
      (!queue_.empty() && bytes_queued_ + frame.payload.size() > limits_.bytes_queued_max)) {
    refused_send_ = true;
    return false;
  }
  Outgoing out;
  out.head = head_of(frame);
  out.request_id = frame.header.request_id;
  out.is_reply = (frame.header.flags & kFlagReply) != 0;
  out.reply_length_max = frame.reply_length_max;
  out.payload = frame.payload;
  out.lease = std::move(frame.lease);
  out.keep = std::move(frame.keep);
  bytes_queued_ += out.payload.size();
  queue_.push_back(std::move(out));
  schedule_pump();
  return true;
}

void RdmaStream::schedule_pump() {
  if (std::exchange(pump_scheduled_, true)) return;
  loop_.defer([this, alive = alive_] {
    if (!*alive) return;
    pump_scheduled_ = false;
    pump();
  });
}

void RdmaStream::flush() { pump(); }

void RdmaStream::pump() {
  if (cut_ || !started_) return;
  lacks_out_ = lacks_in_ = false;
  start_fetches();
  while (!cut_ && !queue_.empty() && post_first()) {
  }
  if (!cut_ && (credits_owed_ >= channel_->credits_given() / 2 ||
                fetched_unreported_ >= kFetchedUnreportedMax)) {
    post_credits();
  }
  if (!lacks_out_) port_.stop_waiting(Port::Way::kOut, this);
  if (!lacks_in_) port_.stop_waiting(Port::Way::kIn, this);
  call_sendable();
}

void RdmaStream::call_sendable() {
  if (cut_ || !refused_send_ || queue_.size() >= limits_.frames_queued_max / 2 ||
      bytes_queued_ > limits_.bytes_queued_max / 2) {
    return;
  }
  refused_send_ = false;
  sink_.sendable();
}

// False: the frame has to wait, or the stream was cut.
bool RdmaStream::post_first() {
  Shape shape;
  if (!shape_of(queue_.front(), shape)) {
    cut(EPROTO, "an answer that the peer made no place for");
    return false;
  }
  if (!resources_available(shape, kCreditsKept)) return false;
  Outgoing frame = std::move(queue_.front());
  queue_.pop_front();
  bytes_queued_ -= frame.payload.size();
  post_frame(frame, shape);
  return !cut_;
}

bool RdmaStream::shape_of(const Outgoing& frame, Shape& shape) {
  const size_t payload = frame.payload.size();
  const size_t fixed = sizeof(MessageHead) + frame.head.size();
  if (payload <= kShortPayloadMax && (payload == 0 || fixed + payload <= kSlotSize)) {
    shape.short_length = static_cast<uint32_t>(payload);
  } else if (port_.is_acceptor()) {
    const auto place = peer_places_.find(frame.request_id);
    if (!frame.is_reply || place == peer_places_.end() ||
        total_length(place->second.segments) < payload) {
      return false;
    }
    shape.bulk = Bulk::kWritten;
    shape.writes = piece_count(place->second.segments, payload);
  } else {
    shape.bulk = Bulk::kFetch;
  }
  shape.bulk_length = shape.bulk == Bulk::kNone ? 0 : static_cast<uint32_t>(payload);
  if (shape.bulk == Bulk::kNone && !port_.is_acceptor() &&
      frame.reply_length_max > kShortPayloadMax) {
    shape.bulk = Bulk::kPlace;
    shape.bulk_length = frame.reply_length_max;
  }
  shape.blocks = blocks_for(shape.bulk_length);
  shape.segments = shape.bulk == Bulk::kFetch || shape.bulk == Bulk::kPlace ? shape.blocks : 0;
  const size_t first =
      kSlotSize - sizeof(MessageHead) - shape.segments * sizeof(Segment) - shape.short_length;
  const size_t rest = frame.head.size() > first ? frame.head.size() - first : 0;
  shape.messages = 1 + (rest + kMessageRoom - 1) / kMessageRoom;
  return true;
}

// True when everything that the frame needs is available now. Else the stream waits, for the port
// or for the peer's credits.
bool RdmaStream::resources_available(const Shape& shape, size_t credits_kept) {
  if (credits_ < shape.messages + credits_kept) return false;
  // A peer that does not answer must not get all of the lane's memory.
  const size_t share = std::max<size_t>(port_.out().count() / 2, kSegmentsMax);
  if (blocks_held_ > 0 && !port_.is_acceptor() && blocks_held_ + shape.blocks > share) return false;
  const auto works = static_cast<uint32_t>(shape.messages + shape.writes);
  const bool fits = port_.may_take(Port::Way::kOut, this) && channel_->has_room(works) &&
                    port_.slots().free_count() >= shape.messages &&
                    port_.out().free_count() >= shape.blocks;
  if (!fits) {
    wait_for_port(Port::Way::kOut);
    return false;
  }
  return true;
}

// The stream keeps its place in the port's line until a pump() finds everything.
void RdmaStream::wait_for_port(Port::Way way) {
  (way == Port::Way::kOut ? lacks_out_ : lacks_in_) = true;
  port_.wait(way, this, [this] { pump(); });
}

std::vector<Segment> RdmaStream::fill_blocks(const Outgoing& frame, const Shape& shape,
                                             Blocks& blocks, std::vector<Work>& works) {
  std::vector<Segment> segments;
  if (shape.bulk == Bulk::kFetch || shape.bulk == Bulk::kWritten) blocks.copy_in(frame.payload);
  if (shape.bulk != Bulk::kWritten) {
    for (size_t index = 0; index < blocks.count(); ++index) {
      const auto part = blocks.part(index, shape.bulk_length);
      segments.push_back({reinterpret_cast<uint64_t>(part.data()), port_.out().remote_key(),
                          static_cast<uint32_t>(part.size())});
    }
    return segments;
  }
  // The pieces of this end and of the peer need not have the same borders.
  const auto& place = peer_places_.at(frame.request_id).segments;
  size_t left = frame.payload.size(), mine = 0, theirs = 0, at_mine = 0, at_theirs = 0;
  while (left > 0) {
    const auto part = blocks.part(mine, frame.payload.size()).subspan(at_mine);
    const size_t count = std::min<size_t>(part.size(), place[theirs].length - at_theirs);
    works.push_back({.kind = Work::Kind::kWrite,
                     .local = part.first(count),
                     .local_key = port_.out().local_key(),
                     .remote_address = place[theirs].address + at_theirs,
                     .remote_key = place[theirs].key});
    left -= count;
    at_mine += count;
    at_theirs += count;
    if (count == part.size()) ++mine, at_mine = 0;
    if (at_theirs == place[theirs].length) ++theirs, at_theirs = 0;
  }
  port_.counters().bytes_written.fetch_add(frame.payload.size(), std::memory_order_relaxed);
  return segments;
}

void RdmaStream::post_frame(Outgoing& frame, const Shape& shape) {
  std::vector<Work> works;
  Blocks blocks = shape.blocks > 0 ? port_.out().take(shape.blocks) : Blocks{};
  const std::vector<Segment> segments = fill_blocks(frame, shape, blocks, works);
  Posted posted;
  posted.must_signal = shape.bulk == Bulk::kWritten;
  if (!port_.is_acceptor()) blocks_held_ += blocks.count();
  if (shape.bulk == Bulk::kFetch) lent_.push_back(std::move(blocks));
  if (shape.bulk == Bulk::kPlace) places_[frame.request_id] = std::move(blocks);
  if (shape.bulk == Bulk::kWritten) posted.memory.push_back(std::move(blocks));
  if (frame.is_reply) peer_places_.erase(frame.request_id);
  port_.counters().bytes_short.fetch_add(shape.short_length, std::memory_order_relaxed);

  const std::span<const std::byte> head(frame.head);
  const size_t first =
      std::min(head.size(), kSlotSize - sizeof(MessageHead) - segments.size() * sizeof(Segment) -
                                shape.short_length);
  MessageHead message;
  message.kind = MessageHead::kFrame;
  message.head_rest = static_cast<uint32_t>(head.size() - first);
  message.bulk = static_cast<uint16_t>(shape.bulk);
  message.bulk_length = shape.bulk_length;
  post_message(message, segments, head.first(first), frame.payload.first(shape.short_length), works,
               std::move(posted));
  for (auto rest = head.subspan(first); !rest.empty() && !cut_;) {
    const auto part = rest.first(std::min(rest.size(), kMessageRoom));
    MessageHead more;
    more.kind = MessageHead::kMore;
    std::vector<Work> none;
    post_message(more, {}, part, {}, none, {});
    rest = rest.subspan(part.size());
  }
}

// Adds the SEND of one message to the end of `works`, and posts them all.
void RdmaStream::post_message(MessageHead head, std::span<const Segment> segments,
                              std::span<const std::byte> frame_head,
                              std::span<const std::byte> payload, std::vector<Work>& works,
                              Posted posted) {
  Blocks slot = port_.slots().take(1);
  head.head_length = static_cast<uint32_t>(frame_head.size());
  head.short_length = static_cast<uint32_t>(payload.size());
  head.segment_count = static_cast<uint16_t>(segments.size());
  head.credits = static_cast<uint16_t>(std::exchange(credits_owed_, 0));
  head.fetched = fetched_;
  fetched_unreported_ = 0;
  std::byte* at = slot.at(0).data();
  const auto put = [&at](const void* from, size_t length) {
    if (length > 0) std::memcpy(at, from, length);
    at += length;
  };
  put(&head, sizeof head);
  put(segments.data(), segments.size_bytes());
  put(frame_head.data(), frame_head.size());
  put(payload.data(), payload.size());
  const auto length = static_cast<size_t>(at - slot.at(0).data());
  works.push_back({.kind = Work::Kind::kSend,
                   .local = slot.at(0).first(length),
                   .local_key = port_.slots().local_key()});
  posted.memory.push_back(std::move(slot));
  --credits_;
  port_.counters().messages_sent.fetch_add(1, std::memory_order_relaxed);
  (void)channel_->post(works, std::move(posted));  // a failure cuts the stream
}

void RdmaStream::post_credits() {
  if (!resources_available(Shape{}, 0)) return;
  MessageHead head;
  head.kind = MessageHead::kCredits;
  std::vector<Work> works;
  post_message(head, {}, {}, {}, works, {});
}

}  // namespace braidfs::rdma
