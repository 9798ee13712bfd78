// Lifetime and receiving half of RdmaStream. send.cpp is the sending half.
#include "rdma/rdma_stream.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/frame_stream.h"

namespace braidfs::rdma {

namespace {

constexpr uint32_t kCreditsHeldMax = 1u << 16;  // more than an honest peer can ever give

}  // namespace

RdmaStream::RdmaStream(net::EventLoop& loop, net::UniqueFd socket, std::shared_ptr<Channel> channel,
                       net::StreamSink& sink, net::StreamLimits limits)
    : loop_(loop),
      socket_(std::move(socket)),
      channel_(std::move(channel)),
      port_(channel_->port()),
      sink_(sink),
      limits_(limits),
      received_at_(loop.now()),
      credits_(channel_->peer_credits()),
      alive_(std::make_shared<bool>(true)) {}

RdmaStream::~RdmaStream() {
  *alive_ = false;
  if (registered_) loop_.remove(socket_.get());
  port_.stop_waiting(Port::Way::kOut, this);
  port_.stop_waiting(Port::Way::kIn, this);
  channel_->unbind();
  channel_->fail();
  for (auto& blocks : lent_) channel_->keep(std::move(blocks));
  for (auto& [request, blocks] : places_) channel_->keep(std::move(blocks));
  port_.retire(std::move(channel_));
}

int RdmaStream::start() {
  const int flags = fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) return -errno;
  if (const int error = port_.attach(loop_); error != 0) return error;
  const int error =
      loop_.add(socket_.get(), EPOLLIN | EPOLLRDHUP, [this](uint32_t) { watch_socket(); });
  if (error != 0) return error;
  registered_ = true;
  channel_->bind(*this);
  started_ = true;
  loop_.defer([this, alive = alive_] {
    if (*alive) drain();
  });
  return 0;
}

// Nobody sends anything on the socket, so a readable socket means that the connection ended. What
// arrived by RDMA before that is handled first.
void RdmaStream::watch_socket() {
  std::byte byte;
  const ssize_t count = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const int error = count < 0 ? errno : (count > 0 ? EPROTO : 0);
  port_.reap();
  cut(error, count > 0 ? "bytes beside the queue pair" : "closed by the peer");
}

void RdmaStream::channel_failed(const std::string& reason) { cut(EIO, "RDMA: " + reason); }

void RdmaStream::cut(int error, std::string reason) {
  if (cut_) return;
  cut_ = true;
  error_ = error;
  reason_ = std::move(reason);
  if (registered_) loop_.remove(socket_.get());
  registered_ = false;
  channel_->fail();
  port_.stop_waiting(Port::Way::kOut, this);
  port_.stop_waiting(Port::Way::kIn, this);
  (void)shutdown(socket_.get(), SHUT_RDWR);
  loop_.defer([this, alive = alive_] {
    if (!*alive) return;
    queue_.clear();
    bytes_queued_ = 0;
    sink_.closed(error_, reason_);
  });
}

void RdmaStream::resume() {
  paused_ = false;
  drain();
}

void RdmaStream::receive(bool on) {
  receiving_ = on;
  if (on) drain();
}

// ---- messages ----

void RdmaStream::message_arrived(std::span<const std::byte> bytes) {
  if (cut_) return;
  received_at_ = loop_.now();
  std::optional<Message> message = parse(bytes);
  if (!message) return cut(EPROTO, "a message that makes no sense");
  credits_ += message->head.credits;
  if (credits_ > kCreditsHeldMax) return cut(EPROTO, "more credits than there can be");
  release_fetched(message->head.fetched);
  if (cut_) return;
  bool taken = true;
  switch (message->head.kind) {
    case MessageHead::kFrame:
      taken = take_frame(*message);
      break;
    case MessageHead::kMore:
      taken = take_more(*message);
      break;
    default:
      ++credits_owed_;
      break;
  }
  if (!taken) return cut(EPROTO, "a message that does not fit here");
  drain();
  schedule_pump();
}

void RdmaStream::release_fetched(uint32_t fetched) {
  if (fetched - released_ > lent_.size()) return cut(EPROTO, "fetched what was never offered");
  for (; released_ != fetched; ++released_) {
    blocks_held_ -= lent_.front().count();
    lent_.pop_front();
  }
}

bool RdmaStream::bulk_fits(const Message& message) const {
  const MessageHead& head = message.head;
  const auto is_empty = [](const Segment& segment) { return segment.length == 0; };
  switch (static_cast<Bulk>(head.bulk)) {
    case Bulk::kNone:
      return head.segment_count == 0 && head.bulk_length == 0;
    case Bulk::kFetch:
      if (head.short_length != 0) return false;
      [[fallthrough]];
    case Bulk::kPlace:
      return port_.is_acceptor() && head.bulk_length > 0 &&
             std::ranges::none_of(message.segments, is_empty) &&
             total_length(message.segments) == head.bulk_length &&
             piece_count(message.segments, head.bulk_length) <= kSegmentsMax;
    case Bulk::kWritten:
      return !port_.is_acceptor() && head.segment_count == 0 && head.short_length == 0 &&
             head.bulk_length > 0;
  }
  return false;
}

bool RdmaStream::take_frame(Message& message) {
  if (head_missing_ > 0 || arrivals_.size() >= channel_->credits_given() || !bulk_fits(message))
    return false;
  if (message.head.head_rest > 0 && message.head.short_length > 0) return false;
  Arrival arrival;
  arrival.head = message.head;
  arrival.wants_fetch = message.head.bulk == static_cast<uint16_t>(Bulk::kFetch);
  arrival.segments = std::move(message.segments);
  arrival.bytes.reserve(message.frame_head.size() + message.payload.size());
  arrival.bytes.assign(message.frame_head.begin(), message.frame_head.end());
  arrival.bytes.insert(arrival.bytes.end(), message.payload.begin(), message.payload.end());
  head_missing_ = message.head.head_rest;
  arrivals_.push_back(std::move(arrival));
  if (arrivals_.back().wants_fetch) start_fetches();
  return true;
}

bool RdmaStream::take_more(const Message& message) {
  const size_t count = message.frame_head.size();
  if (count == 0 || count > head_missing_ || !message.payload.empty()) return false;
  auto& bytes = arrivals_.back().bytes;
  bytes.insert(bytes.end(), message.frame_head.begin(), message.frame_head.end());
  head_missing_ -= static_cast<uint32_t>(count);
  ++credits_owed_;
  return true;
}

// ---- payloads of requests are fetched before their frames are delivered ----

void RdmaStream::start_fetches() {
  for (Arrival& arrival : arrivals_) {
    if (cut_) return;
    if (!arrival.wants_fetch || arrival.fetch != 0) continue;
    const size_t blocks = (arrival.head.bulk_length + kBlockSize - 1) / kBlockSize;
    const auto works =
        static_cast<uint32_t>(piece_count(arrival.segments, arrival.head.bulk_length));
    if (!port_.may_take(Port::Way::kIn, this) || !channel_->has_room(works) ||
        port_.in().free_count() < blocks) {
      return wait_for_port(Port::Way::kIn);
    }
    post_fetch(arrival, blocks);
  }
}

void RdmaStream::post_fetch(Arrival& arrival, size_t block_count) {
  Blocks blocks = port_.in().take(block_count);
  std::vector<Work> works;
  const size_t length = arrival.head.bulk_length;
  size_t block = 0, at = 0;
  for (const Segment& segment : arrival.segments) {
    for (size_t done = 0; done < segment.length;) {
      const auto part = blocks.part(block, length).subspan(at);
      const size_t count = std::min<size_t>(part.size(), segment.length - done);
      works.push_back({.kind = Work::Kind::kRead,
                       .local = part.first(count),
                       .local_key = port_.in().local_key(),
                       .remote_address = segment.address + done,
                       .remote_key = segment.key});
      done += count;
      at += count;
      if (count == part.size()) ++block, at = 0;
    }
  }
  arrival.fetch = next_fetch_++;
  Posted posted;
  posted.fetch = arrival.fetch;
  posted.must_signal = true;
  posted.memory.push_back(std::move(blocks));
  (void)channel_->post(works, std::move(posted));  // a failure cuts the stream
}

void RdmaStream::fetch_done(uint64_t fetch, std::vector<Blocks> memory) {
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(),
                                  [&](const Arrival& arrival) { return arrival.fetch == fetch; });
  if (found == arrivals_.end() || cut_) return;
  found->blocks = std::move(memory.front());
  found->wants_fetch = false;
  ++fetched_;
  fetched_unreported_ += found->head.bulk_length;
  port_.counters().bytes_fetched.fetch_add(found->head.bulk_length, std::memory_order_relaxed);
  drain();
  schedule_pump();
}

// ---- delivery ----

void RdmaStream::drain() {
  if (draining_ || !started_) return;
  draining_ = true;
  bool moved = false;
  while (!cut_ && receiving_ && !paused_ && !arrivals_.empty()) {
    Arrival& first = arrivals_.front();
    if (first.wants_fetch || (head_missing_ > 0 && arrivals_.size() == 1)) break;
    if (!deliver(first)) break;
    arrivals_.pop_front();
    ++credits_owed_;
    moved = true;
  }
  draining_ = false;
  if (moved && !cut_) schedule_pump();
}

bool RdmaStream::deliver(Arrival& arrival) {
  const std::span<const std::byte> bytes(arrival.bytes);
  const auto refuse = [this](const char* why) {
    cut(EPROTO, why);
    return false;
  };
  if (bytes.size() < kHeaderSize) return refuse("a frame without a header");
  const DecodedHeader decoded = decode_header(bytes);
  if (decoded.fault != FrameFault::kOk) return refuse("bad frame header");
  const FrameHeader& header = decoded.header;
  const uint32_t moved =
      arrival.head.bulk == static_cast<uint16_t>(Bulk::kPlace) ? 0 : arrival.head.bulk_length;
  if (header.body_length > limits_.body_length_max ||
      header.payload_length > limits_.payload_length_max ||
      header.payload_length != arrival.head.short_length + moved ||
      kHeaderSize + header.body_length + arrival.head.short_length != bytes.size()) {
    return refuse("lengths that do not fit");
  }
  body_.resize((size_t{header.body_length} + 7) / 8);
  if (!body_.empty()) std::memcpy(body_.data(), bytes.data() + kHeaderSize, header.body_length);
  const std::span body(reinterpret_cast<const std::byte*>(body_.data()), header.body_length);
  if ((body.empty() ? 0 : xxh3(body)) != header.body_checksum) return refuse("damaged body");
  if (!place_fits(header, arrival)) return refuse("a place that cannot be");

  std::span<std::byte> payload;
  bool discard = false;
  if (!take_payload(header, arrival, body, payload, discard)) return false;
  keep_place(header, arrival);
  consumed(header);
  if (!discard && !sink_.frame(header, body, payload)) return refuse("refused a frame");
  return !cut_;
}

// At the initiator: whether such a place exists. At the acceptor: whether the peer may offer this
// one.
bool RdmaStream::place_fits(const FrameHeader& header, const Arrival& arrival) const {
  const auto bulk = static_cast<Bulk>(arrival.head.bulk);
  if (bulk == Bulk::kWritten) {
    const auto place = places_.find(header.request_id);
    return (header.flags & kFlagReply) != 0 && place != places_.end() &&
           place->second.count() * kBlockSize >= arrival.head.bulk_length;
  }
  if (bulk != Bulk::kPlace) return true;
  return (header.flags & kFlagReply) == 0 && peer_places_.size() < kPlacesMax &&
         !peer_places_.contains(header.request_id);
}

// At the acceptor: remembers where the reply's payload goes.
void RdmaStream::keep_place(const FrameHeader& header, Arrival& arrival) {
  if (arrival.head.bulk != static_cast<uint16_t>(Bulk::kPlace)) return;
  peer_places_.emplace(header.request_id, Place{std::move(arrival.segments)});
}

// False: the frame has to wait (paused), or the stream was cut.
bool RdmaStream::take_payload(const FrameHeader& header, Arrival& arrival,
                              std::span<const std::byte> body, std::span<std::byte>& payload,
                              bool& discard) {
  if (header.payload_length == 0) return true;
  const net::PayloadPlace place = sink_.payload_buffer(header, body);
  if (place.verdict == net::Verdict::kPause) {
    paused_ = true;
    return false;
  }
  discard = place.verdict == net::Verdict::kDiscard;
  if (discard) return true;
  if (place.verdict == net::Verdict::kRefuse || place.bytes.size() != header.payload_length) {
    cut(EPROTO, "refused a frame");
    return false;
  }
  payload = place.bytes;
  if (arrival.head.short_length > 0) {
    std::memcpy(payload.data(), arrival.bytes.data() + kHeaderSize + header.body_length,
                payload.size());
  } else if (arrival.head.bulk == static_cast<uint16_t>(Bulk::kWritten)) {
    places_.at(header.request_id).copy_out(payload);
  } else {
    arrival.blocks.copy_out(payload);
  }
  return true;
}

// The peer has finished with the place that the request of this reply offered.
void RdmaStream::consumed(const FrameHeader& header) {
  if (port_.is_acceptor() || (header.flags & kFlagReply) == 0) return;
  const auto place = places_.find(header.request_id);
  if (place == places_.end()) return;
  blocks_held_ -= place->second.count();
  places_.erase(place);
}

std::unique_ptr<net::Stream> open_stream(net::EventLoop& loop, net::Socket socket,
                                         std::shared_ptr<Channel> channel, net::StreamSink& sink,
                                         net::StreamLimits limits) {
  if (!channel) return std::make_unique<net::FrameStream>(loop, std::move(socket), sink, limits);
  return std::make_unique<RdmaStream>(loop, std::move(socket).take_fd(), std::move(channel), sink,
                                      limits);
}

}  // namespace braidfs::rdma
