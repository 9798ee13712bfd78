// Frames over a connected, non-blocking stream socket on an event loop.
//
// Receiving: one recvmsg takes as many small frames as there are, or fills the payload's final place
// (frame_parser.h). Sending: a bounded ring of frames; header and body are copied into the ring's
// slots (memory reused), payloads are referenced and kept alive by a lease or a shared_ptr until the
// last byte was given to the kernel. Frames queued in one turn leave in one sendmsg at its end.
//
// After an error, a refused frame or the peer's close: closed() once, at the end of the turn, then
// nothing more; the owner may destroy the stream in closed() or any time outside the sink's other calls.
// Threads: LOOP ONLY.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/buffer_pool.h"
#include "net/event_loop.h"
#include "net/frame_parser.h"
#include "net/unique_fd.h"

namespace braidfs::net {

struct StreamLimits {
  uint32_t body_length_max = 64u << 10;  // capability and the sums of 16 MiB fit
  uint32_t payload_length_max = limits::kFramePayloadLengthMax;
  uint32_t frames_queued_max = 2 * limits::kRequestsInFlightMax;
  size_t bytes_queued_max = 256u << 20;  // payload bytes waiting to be sent
};

class StreamSink : public FrameSink {
 public:
  // error: 0 the peer closed between frames, else an errno (EPROTO: it broke the protocol).
  virtual void closed(int error, const std::string& reason) = 0;
  // The send queue fell below half of its bounds after send() had returned false.
  virtual void sendable() {}
};

// A frame to be sent. The stream fills in the lengths and checksums of the header.
struct OutFrame {
  FrameHeader header{};
  std::span<const std::byte> body{};        // copied by send()
  std::span<const std::byte> body_tail{};   // copied after body (sums after a capability)
  std::span<const std::byte> payload{};     // referenced until sent
  BufferPool::Lease lease{};                // keeps payload, if it came from a pool
  std::shared_ptr<const void> keep{};       // or this does
};

class FrameStream {
 public:
  FrameStream(EventLoop& loop, UniqueFd socket, StreamSink& sink, StreamLimits limits = {});
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Makes the socket non-blocking and begins to receive. 0 or -errno.
  int start();

  // Queues a frame; sent at the end of the turn. False, and `frame` untouched, when a bound is
  // reached (sendable() will tell) or the stream is closed.
  [[nodiscard]] bool send(OutFrame&& frame);
  // Sends what is queued now instead of at the end of the turn.
  void flush();

  // After payload_buffer() said kPause.
  void resume();
  // Stops and starts receiving, for back pressure by the owner.
  void receive(bool on);
  // Cuts the connection: closed(error, reason) at the end of the turn.
  void cut(int error, std::string reason);

  bool is_open() const noexcept { return !cut_; }
  size_t frames_queued() const noexcept { return count_; }
  size_t bytes_queued() const noexcept { return bytes_queued_; }
  Clock::time_point received_at() const noexcept { return received_at_; }

 private:
  struct Slot {
    std::vector<std::byte> head;  // header and body; keeps its memory
    std::span<const std::byte> payload{};
    BufferPool::Lease lease{};
    std::shared_ptr<const void> keep{};
    size_t length() const noexcept { return head.size() + payload.size(); }
  };

  void on_events(uint32_t events);
  void receive_some();
  bool settle(ParseResult result);
  Slot& slot(size_t index) noexcept { return slots_[(first_ + index) % slots_.size()]; }
  void fill(Slot& slot, OutFrame&& frame);
  void grow();
  size_t gather(std::span<iovec> places);
  void sent(size_t count);
  void pop() noexcept;
  void schedule_flush();
  void update_interest();
  void report_closed();

  EventLoop& loop_;
  UniqueFd socket_;
  StreamSink& sink_;
  const StreamLimits limits_;
  FrameParser parser_;
  Clock::time_point received_at_;

  std::vector<Slot> slots_;  // a ring: first_, count_
  size_t first_ = 0;
  size_t count_ = 0;
  size_t first_sent_ = 0;  // bytes of slot(0) given to the kernel already
  size_t bytes_queued_ = 0;
  bool blocked_ = false;         // the socket's buffer is full: waiting for EPOLLOUT
  bool refused_send_ = false;    // send() said false: sendable() is owed
  bool flush_scheduled_ = false;
  bool receiving_ = true;
  bool registered_ = false;
  bool cut_ = false;
  int error_ = 0;
  std::string reason_;
  std::shared_ptr<bool> alive_;  // deferred tasks look here before they touch the stream
};

}  // namespace braidfs::net
