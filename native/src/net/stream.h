// The narrow waist of the data path: frames over one connection, whatever carries them.
//
// Implementations: FrameStream (a socket) and rdma::RdmaStream. One conformance suite
// (tests/rdma/test_conformance.cpp) runs against both.
//
// After an error, a refused frame or the peer's close, closed() is called once, at the end of the
// turn, and nothing is called after it. The owner may destroy the stream in closed(), or at any
// time outside the sink's other calls. Threads: LOOP ONLY.
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
  uint32_t body_length_max = 64u << 10;  // room for a capability and the sums of 16 MiB
  uint32_t payload_length_max = limits::kFramePayloadLengthMax;
  uint32_t frames_queued_max = 2 * limits::kRequestsInFlightMax;
  size_t bytes_queued_max = 256u << 20;  // payload bytes that wait to be sent
  // Bytes, of a local socket's send buffer, as far as the system allows. 0: the system's choice.
  int local_send_buffer = 0;
};

class StreamSink : public FrameSink {
 public:
  // `error` is 0 when the peer closed between frames, else an errno (EPROTO: the peer broke the
  // protocol).
  virtual void closed(int error, const std::string& reason) = 0;
  // Called when the send queue fell below half of its bounds, after send() had returned false.
  virtual void sendable() {}
};

// A frame to be sent. The stream fills in the header's lengths and checksums.
struct OutFrame {
  FrameHeader header{};
  std::span<const std::byte> body{};       // copied by send()
  std::span<const std::byte> body_tail{};  // copied after body: the sums behind a capability
  // The beginning of the payload, as parts of files. Only where takes_pages(). Referenced until
  // sent; what a file lacks by then is sent as zeros.
  std::span<const FilePart> files{};
  std::span<const std::byte> payload{};  // the (rest of the) payload; referenced until sent
  BufferPool::Lease lease{};             // keeps the payload alive, if it came from a pool
  std::shared_ptr<const void> keep{};    // keeps it alive otherwise
  // The payload does not change until the peer has answered, even after it was sent.
  bool lends = false;
  // Of a request: the longest payload that its reply may have.
  uint32_t reply_length_max = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Begins to receive. 0 or -errno.
  virtual int start() = 0;
  // Queues a frame, which leaves at the end of the turn. False when a bound is reached (sendable()
  // will follow) or the stream is closed; then `frame` is unchanged.
  [[nodiscard]] virtual bool send(OutFrame&& frame) = 0;
  // True: pages of files, and of memory that is lent, go to the peer by reference.
  virtual bool takes_pages() const noexcept { return false; }
  // Sends what is queued now instead of at the end of the turn.
  virtual void flush() = 0;
  // Continues after payload_buffer() returned kPause.
  virtual void resume() = 0;
  // Stops or starts receiving: the owner's back pressure.
  virtual void receive(bool on) = 0;
  // Cuts the connection; closed(error, reason) follows at the end of the turn.
  virtual void cut(int error, std::string reason) = 0;

  virtual bool is_open() const noexcept = 0;
  virtual size_t frames_queued() const noexcept = 0;
  virtual size_t bytes_queued() const noexcept = 0;
  virtual Clock::time_point received_at() const noexcept = 0;
};

}  // namespace braidfs::net
