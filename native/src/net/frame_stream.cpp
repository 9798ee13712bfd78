#include "net/frame_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace braidfs::net {

namespace {

// After so many receives the loop's other fds get their turn.
constexpr int kReceivesPerTurn = 16;
constexpr size_t kSendPlacesMax = 64;  // iovecs in one sendmsg
constexpr size_t kSlotsFirst = 16;
constexpr size_t kLentMin = 64u << 10;  // shorter payloads are copied, which is faster
// A slot keeps at most this much memory for its next frame.
constexpr size_t kHeadKept = 4096;

constexpr std::array<std::byte, 4096> kZeros{};

std::span<const std::byte> bytes_of(const FrameHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

FrameStream::FrameStream(EventLoop& loop, Socket socket, StreamSink& sink, StreamLimits limits)
    : loop_(loop),
      socket_(std::move(socket)),
      sink_(sink),
      limits_(limits),
      parser_(limits.body_length_max, limits.payload_length_max),
      received_at_(loop.now()),
      slots_(kSlotsFirst),
      alive_(std::make_shared<bool>(true)) {}

FrameStream::~FrameStream() {
  *alive_ = false;
  if (registered_) loop_.remove(socket_.get());
}

int FrameStream::start() {
  if (const int error = socket_.start(); error != 0) return error;
  if (limits_.local_send_buffer > 0 && socket_.takes_pages())
    socket_.send_buffer(limits_.local_send_buffer);
  const int error =
      loop_.add(socket_.get(), EPOLLIN, [this](uint32_t events) { on_events(events); });
  registered_ = error == 0;
  receive_held();
  return error;
}

bool FrameStream::send(OutFrame&& frame) {
  if (cut_) return false;
  const size_t payload = length_of(frame.files) + frame.payload.size();
  if (count_ >= limits_.frames_queued_max ||
      (count_ > 0 && bytes_queued_ + payload > limits_.bytes_queued_max)) {
    refused_send_ = true;
    return false;
  }
  if (count_ == slots_.size()) grow();
  ++count_;
  fill(slot(count_ - 1), std::move(frame));
  schedule_flush();
  return true;
}

void FrameStream::fill(Slot& to, OutFrame&& frame) {
  to.files = frame.files;
  to.file_bytes = length_of(frame.files);
  to.payload = frame.payload;
  to.lends = frame.lends && to.payload.size() >= kLentMin && takes_pages() && pipe_.open();
  frame.header.body_length = static_cast<uint32_t>(frame.body.size() + frame.body_tail.size());
  frame.header.payload_length = static_cast<uint32_t>(to.payload_length());
  to.head.clear();
  append(to.head, bytes_of(frame.header));
  append(to.head, frame.body);
  append(to.head, frame.body_tail);
  const auto body = std::span<const std::byte>(to.head).subspan(kHeaderSize);
  frame.header.body_checksum = body.empty() ? 0 : xxh3(body);
  seal(frame.header);
  std::memcpy(to.head.data(), &frame.header, kHeaderSize);
  to.lease = std::move(frame.lease);
  to.keep = std::move(frame.keep);
  bytes_queued_ += to.payload_length();
}

void FrameStream::grow() {
  std::vector<Slot> larger(slots_.size() * 2);
  for (size_t index = 0; index < count_; ++index) larger[index] = std::move(slot(index));
  slots_ = std::move(larger);
  first_ = 0;
}

void FrameStream::schedule_flush() {
  if (flush_scheduled_ || blocked_) return;
  flush_scheduled_ = true;
  loop_.defer([this, alive = alive_] {
    if (!*alive) return;
    flush_scheduled_ = false;
    flush();
  });
}

// Sends what is queued. Returns 0 when all is sent, -EAGAIN when the socket takes no more now,
// or another -errno.
int FrameStream::send_queued() {
  int error = socket_.flush();
  while (error == 0 && count_ > 0) {
    std::array<iovec, kSendPlacesMax> places;
    const size_t used = collect_places(places);
    const ssize_t count = used > 0 ? socket_.send(std::span(places).first(used)) : send_pages();
    if (count >= 0) mark_sent(static_cast<size_t>(count));
    if (count < 0 && count != -EINTR) error = static_cast<int>(count);
  }
  return error == 0 && socket_.unsent() ? -EAGAIN : error;
}

// Sends the next bytes of the first frame by reference, without a copy in this program's memory.
ssize_t FrameStream::send_pages() {
  Slot& first = slot(0);
  const size_t at = first_sent_ - first.head.size();
  if (at < first.file_bytes) return send_file(at);
  if (pipe_.held() == 0 && pipe_.take(first.payload.subspan(at - first.file_bytes)) <= 0) {
    first.lends = false;  // from now on they are copied
    return 0;
  }
  return pipe_.give(socket_.get());
}

// Sends the next part of a file. What the file lacks is sent as zeros: the receiver's
// checksums show that they are not what was meant.
ssize_t FrameStream::send_file(size_t at) {
  auto part = slot(0).files.begin();
  for (; at >= part->length; ++part) at -= part->length;
  const size_t left = part->length - at;
  const ssize_t count = socket_.send_file(part->fd, part->offset + at, left);
  if (count != 0 && count != -EIO) return count;
  std::array<iovec, 1> zeros{
      {{const_cast<std::byte*>(kZeros.data()), std::min(left, kZeros.size())}}};
  return socket_.send(zeros);
}

void FrameStream::flush() {
  if (cut_) return;
  const int error = send_queued();
  if (error != 0 && error != -EAGAIN) return cut(-error, "send failed");
  blocked_ = error == -EAGAIN;
  update_interest();
  if (refused_send_ && count_ < limits_.frames_queued_max / 2 &&
      bytes_queued_ <= limits_.bytes_queued_max / 2) {
    refused_send_ = false;
    sink_.sendable();
  }
}

// Collects the bytes that are to be copied, up to the next bytes that go by reference. Returns 0
// when those are next.
size_t FrameStream::collect_places(std::span<iovec> places) {
  size_t used = 0;
  size_t skip = first_sent_;
  const auto put = [&](std::span<const std::byte> bytes) {
    if (skip >= bytes.size()) {
      skip -= bytes.size();
      return;
    }
    bytes = bytes.subspan(skip);
    skip = 0;
    places[used++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  for (size_t index = 0; index < count_ && used + 2 <= places.size(); ++index) {
    put(slot(index).head);
    if (skip < slot(index).file_bytes) break;
    skip -= slot(index).file_bytes;
    if (slot(index).lends) break;
    put(slot(index).payload);
  }
  return used;
}

void FrameStream::mark_sent(size_t count) {
  first_sent_ += count;
  while (count_ > 0 && first_sent_ >= slot(0).length()) {
    first_sent_ -= slot(0).length();
    pop();
  }
}

void FrameStream::pop() noexcept {
  Slot& done = slot(0);
  bytes_queued_ -= done.payload_length();
  done.files = {};
  done.file_bytes = 0;
  done.payload = {};
  done.lends = false;
  done.lease.reset();
  done.keep.reset();
  if (done.head.capacity() > kHeadKept) done.head = {};
  first_ = (first_ + 1) % slots_.size();
  --count_;
}

void FrameStream::on_events(uint32_t events) {
  if (cut_) return;
  if ((events & EPOLLOUT) != 0) {
    blocked_ = false;
    flush();
  }
  if (cut_ || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  if (receiving_ && !parser_.paused()) return receive_some();
  // Without a reader, epoll would report the end of the connection again and again.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) cut(ECONNRESET, "closed by the peer");
}

void FrameStream::receive_some() {
  for (int round = 0; round < kReceivesPerTurn && receiving_ && !cut_; ++round) {
    std::array<iovec, 2> places;
    const auto wanted = std::span(places).first(parser_.wanted(places));
    if (wanted.empty()) return;
    size_t room = 0;
    for (const iovec& place : wanted) room += place.iov_len;
    const ssize_t count = socket_.receive(wanted);
    if (count == -EINTR) continue;
    if (count == -EAGAIN) return;
    if (count < 0) return cut(static_cast<int>(-count), "receive failed");
    if (count == 0) return cut(parser_.idle() ? 0 : ECONNRESET, "closed by the peer");
    received_at_ = loop_.now();
    if (!after_parsing(parser_.received(static_cast<size_t>(count), sink_))) return;
    if (static_cast<size_t>(count) < room) break;
  }
  receive_held();
}

// Receives what the socket holds decrypted: no event of the fd announces these bytes.
void FrameStream::receive_held() {
  if (receive_scheduled_ || cut_ || !registered_ || !socket_.has_more()) return;
  if (!receiving_ || parser_.paused()) return;
  receive_scheduled_ = true;
  loop_.defer([this, alive = alive_] {
    if (!*alive) return;
    receive_scheduled_ = false;
    if (!cut_ && receiving_ && !parser_.paused()) receive_some();
  });
}
// True: more may be received now.

bool FrameStream::after_parsing(ParseResult result) {
  if (result == ParseResult::kMore) return true;
  if (result == ParseResult::kPaused) {
    update_interest();
    return false;
  }
  cut(EPROTO,
      parser_.fault() == FrameFault::kOk
          ? "refused a frame"
          : "bad frame header (fault " + std::to_string(static_cast<int>(parser_.fault())) + ")");
  return false;
}

void FrameStream::resume() {
  if (cut_ || !parser_.paused()) return;
  after_parsing(parser_.resume(sink_));
  update_interest();
}

void FrameStream::receive(bool on) {
  receiving_ = on;
  update_interest();
}

void FrameStream::update_interest() {
  if (!registered_ || cut_) return;
  const uint32_t in = receiving_ && !parser_.paused() ? uint32_t{EPOLLIN} : 0;
  const uint32_t out = blocked_ ? uint32_t{EPOLLOUT} : 0;
  loop_.modify(socket_.get(), in | out);
  receive_held();
}

void FrameStream::cut(int error, std::string reason) {
  if (cut_) return;
  cut_ = true;
  error_ = error;
  reason_ = std::move(reason);
  if (registered_) loop_.remove(socket_.get());
  registered_ = false;
  (void)shutdown(socket_.get(), SHUT_RDWR);
  loop_.defer([this, alive = alive_] {
    if (*alive) report_closed();
  });
}

void FrameStream::report_closed() {
  while (count_ > 0) pop();
  sink_.closed(error_, reason_);
}

}  // namespace braidfs::net
