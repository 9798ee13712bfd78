// Frames over a connected, non-blocking stream socket on an event loop.
//
// Receiving: one recvmsg takes as many small frames as there are, or fills the payload's final
// place (frame_parser.h). Sending: a bounded ring of frames; header and body are copied into the
// ring's slots (memory reused), payloads are referenced and kept alive by a lease or a shared_ptr
// until the last byte was given to the socket (what is lent: until the peer answered). Frames
// queued in one turn leave in one sendmsg at its end.
//
// After an error, a refused frame or the peer's close: closed() once, at the end of the turn, then
// nothing more; the owner may destroy the stream in closed() or any time outside the sink's other
// calls. Threads: LOOP ONLY.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/buffer_pool.h"
#include "net/event_loop.h"
#include "net/frame_parser.h"
#include "net/page_pipe.h"
#include "net/socket.h"
#include "net/stream.h"

namespace braidfs::net {

class FrameStream final : public Stream {
 public:
  FrameStream(EventLoop& loop, Socket socket, StreamSink& sink, StreamLimits limits = {});
  ~FrameStream() override;
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Makes the socket non-blocking and begins to receive.
  int start() override;

  [[nodiscard]] bool send(OutFrame&& frame) override;
  void flush() override;
  void resume() override;
  void receive(bool on) override;
  void cut(int error, std::string reason) override;

  bool takes_pages() const noexcept override { return socket_.takes_pages(); }
  bool is_open() const noexcept override { return !cut_; }
  size_t frames_queued() const noexcept override { return count_; }
  size_t bytes_queued() const noexcept override { return bytes_queued_; }
  Clock::time_point received_at() const noexcept override { return received_at_; }

 private:
  struct Slot {
    std::vector<std::byte> head;  // header and body; keeps its memory
    std::span<const FilePart> files{};
    size_t file_bytes = 0;
    std::span<const std::byte> payload{};
    bool lends = false;  // payload goes by reference
    BufferPool::Lease lease{};
    std::shared_ptr<const void> keep{};
    size_t payload_length() const noexcept { return file_bytes + payload.size(); }
    size_t length() const noexcept { return head.size() + payload_length(); }
  };

  void on_events(uint32_t events);
  void receive_some();
  void receive_held();
  bool settle(ParseResult result);
  Slot& slot(size_t index) noexcept { return slots_[(first_ + index) % slots_.size()]; }
  void fill(Slot& slot, OutFrame&& frame);
  void grow();
  size_t gather(std::span<iovec> places);
  ssize_t send_pages();
  ssize_t send_file(size_t at);
  int send_queued();
  void sent(size_t count);
  void pop() noexcept;
  void schedule_flush();
  void update_interest();
  void report_closed();

  EventLoop& loop_;
  Socket socket_;
  StreamSink& sink_;
  const StreamLimits limits_;
  FrameParser parser_;
  Clock::time_point received_at_;

  std::vector<Slot> slots_;  // a ring: first_, count_
  size_t first_ = 0;
  size_t count_ = 0;
  size_t first_sent_ = 0;  // bytes of slot(0) given to the kernel already
  size_t bytes_queued_ = 0;
  PagePipe pipe_;              // holds bytes of slot(0)'s payload that come next, or nothing
  bool blocked_ = false;       // the socket's buffer is full: waiting for EPOLLOUT
  bool refused_send_ = false;  // send() said false: sendable() is owed
  bool flush_scheduled_ = false;
  bool receiving_ = true;
  bool registered_ = false;
  bool receive_scheduled_ = false;
  bool cut_ = false;
  int error_ = 0;
  std::string reason_;
  std::shared_ptr<bool> alive_;  // deferred tasks look here before they touch the stream
};

}  // namespace braidfs::net
