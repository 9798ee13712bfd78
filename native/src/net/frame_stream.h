// Frames over a connected, non-blocking stream socket on an event loop.
//
// Receiving: one recvmsg takes as many small frames as have arrived, or fills the final place of a
// payload (frame_parser.h). Sending: a bounded ring of frames. Headers and bodies are copied into
// the ring's slots, whose memory is reused. Payloads are referenced; a lease or a shared_ptr keeps
// them alive until the socket took the last byte (a payload that is lent: until the peer answered).
// Frames that are queued in one turn leave in one sendmsg at the turn's end.
//
// After an error, a refused frame or the peer's close, closed() is called once, at the end of the
// turn, and nothing is called after it. The owner may destroy the stream in closed(), or at any
// time outside the sink's other calls.
//
// Threads: LOOP ONLY. Not here: what the frames mean (client/link.h, server/connection.h).
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
    std::vector<std::byte> head;  // header and body; the memory is reused
    std::span<const FilePart> files{};
    size_t file_bytes = 0;
    std::span<const std::byte> payload{};
    bool lends = false;  // the payload goes by reference
    BufferPool::Lease lease{};
    std::shared_ptr<const void> keep{};
    size_t payload_length() const noexcept { return file_bytes + payload.size(); }
    size_t length() const noexcept { return head.size() + payload_length(); }
  };

  void on_events(uint32_t events);
  void receive_some();
  void receive_held();
  bool after_parsing(ParseResult result);
  Slot& slot(size_t index) noexcept { return slots_[(first_ + index) % slots_.size()]; }
  void fill(Slot& slot, OutFrame&& frame);
  void grow();
  size_t collect_places(std::span<iovec> places);
  ssize_t send_pages();
  ssize_t send_file(size_t at);
  int send_queued();
  void mark_sent(size_t count);
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

  std::vector<Slot> slots_;  // a ring of count_ slots that begins at first_
  size_t first_ = 0;
  size_t count_ = 0;
  size_t first_sent_ = 0;  // bytes of slot(0) that the kernel has taken
  size_t bytes_queued_ = 0;
  // Holds the next bytes of slot(0)'s payload, or nothing.
  PagePipe pipe_;
  bool blocked_ = false;       // the socket's buffer is full: EPOLLOUT is awaited
  bool refused_send_ = false;  // send() returned false: sendable() must be called
  bool flush_scheduled_ = false;
  bool receiving_ = true;
  bool registered_ = false;
  bool receive_scheduled_ = false;
  bool cut_ = false;
  int error_ = 0;
  std::string reason_;
  std::shared_ptr<bool> alive_;  // deferred tasks check it before they touch the stream
};

}  // namespace braidfs::net
