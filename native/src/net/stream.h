// The waist of the data path: frames over one connection, whatever carries them.
//
// Implementations: FrameStream (a socket) and rdma::RdmaStream; one conformance suite
// (tests/rdma/test_conformance.cpp) runs against both. After an error, a refused frame or the
// peer's end: closed() once, at the end of the turn, then nothing more; the owner may destroy the
// stream in closed() or any time outside the sink's other calls. Threads: LOOP ONLY.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "core/file_part.h"
#include "net/buffer_pool.h"
#include "net/event_loop.h"
#include "net/frame_parser.h"

namespace braidfs::net {

struct StreamLimits {
  uint32_t body_length_max = 64u << 10;  // capability and the sums of 16 MiB fit
  uint32_t payload_length_max = limits::kFramePayloadLengthMax;
  uint32_t frames_queued_max = 2 * limits::kRequestsInFlightMax;
  size_t bytes_queued_max = 256u << 20;  // payload bytes waiting to be sent
  int local_send_buffer = 0;  // of a local socket, as far as the system allows; 0: its own choice
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
  std::span<const std::byte> body{};       // copied by send()
  std::span<const std::byte> body_tail{};  // copied after body (sums after a capability)
  // Where takes_pages(): the beginning of the payload, referenced until sent. What a file lacks by
  // then comes as zeros.
  std::span<const FilePart> files{};
  std::span<const std::byte> payload{};  // the (rest of the) payload, referenced until sent
  BufferPool::Lease lease{};             // keeps payload, if it came from a pool
  std::shared_ptr<const void> keep{};    // or this does
  bool lends = false;             // payload stays as it is until the peer has answered, sent or not
  uint32_t reply_length_max = 0;  // of a request: the payload that its answer may have
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Begins to receive. 0 or -errno.
  virtual int start() = 0;
  // Queues a frame; sent at the end of the turn. False, and `frame` untouched, when a bound is
  // reached (sendable() will tell) or the stream is closed.
  [[nodiscard]] virtual bool send(OutFrame&& frame) = 0;
  // Pages of files, and of memory that is lent, go to the peer by reference.
  virtual bool takes_pages() const noexcept { return false; }
  // Sends what is queued now instead of at the end of the turn.
  virtual void flush() = 0;
  // After payload_buffer() said kPause.
  virtual void resume() = 0;
  // Stops and starts receiving, for back pressure by the owner.
  virtual void receive(bool on) = 0;
  // Cuts the connection: closed(error, reason) at the end of the turn.
  virtual void cut(int error, std::string reason) = 0;

  virtual bool is_open() const noexcept = 0;
  virtual size_t frames_queued() const noexcept = 0;
  virtual size_t bytes_queued() const noexcept = 0;
  virtual Clock::time_point received_at() const noexcept = 0;
};

}  // namespace braidfs::net
