// Frames over a reliable queue pair (net/stream.h). message.h says how the bytes move.
//
// The authenticated TCP socket on which the two ends agreed on the queue pair stays open beside it.
// Its end is the end of the stream, so the death of a peer is noticed at once and not only after
// retries.
//
// Sending: a bounded queue. The first frame waits until the peer's credits, slots, blocks and work
// requests for it are available, so frames keep their order. Receiving: frames are delivered in the
// order of their messages, while payloads of later frames are already being fetched. A peer whose
// claims do not add up is cut. Every payload passes through registered blocks, with one copy at
// each end: the owner's buffers are touched only between send() and pump(), and between
// payload_buffer() and frame().
//
// Threads: LOOP ONLY. Invariant: blocks lent to the peer (places, payloads to be fetched) return
// only when a message of the peer says that it has finished with them, or with the queue pair.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/socket.h"
#include "net/stream.h"
#include "rdma/channel.h"
#include "rdma/message.h"

namespace braidfs::rdma {

class RdmaStream final : public net::Stream, private ChannelUser {
 public:
  // Requests that may wait for a reply; an acceptor refuses more.
  static constexpr size_t kPlacesMax = 4 * limits::kRequestsInFlightMax;

  RdmaStream(net::EventLoop& loop, net::UniqueFd socket, std::shared_ptr<Channel> channel,
             net::StreamSink& sink, net::StreamLimits limits);
  ~RdmaStream() override;

  int start() override;
  [[nodiscard]] bool send(net::OutFrame&& frame) override;
  void flush() override;
  void resume() override;
  void receive(bool on) override;
  void cut(int error, std::string reason) override;

  bool is_open() const noexcept override { return !cut_; }
  size_t frames_queued() const noexcept override { return queue_.size(); }
  size_t bytes_queued() const noexcept override { return bytes_queued_; }
  net::Clock::time_point received_at() const noexcept override { return received_at_; }

 private:
  struct Outgoing {
    uint64_t request_id = 0;
    bool is_reply = false;
    uint32_t reply_length_max = 0;
    std::vector<std::byte> head;
    std::span<const std::byte> payload{};
    net::BufferPool::Lease lease{};
    std::shared_ptr<const void> keep{};
  };
  // How a frame is sent; decided when the frame is the first of the queue.
  struct Shape {
    Bulk bulk = Bulk::kNone;
    uint32_t short_length = 0;
    uint32_t bulk_length = 0;  // length of the payload or of the place
    size_t blocks = 0;
    size_t segments = 0;  // in the message
    size_t writes = 0;
    size_t messages = 1;
  };
  struct Arrival {
    MessageHead head;
    std::vector<Segment> segments;
    std::vector<std::byte> bytes;  // the frame's head and its short payload
    Blocks blocks;                 // where the payload was fetched to
    uint64_t fetch = 0;            // 0: the fetch has not begun, or there is nothing to fetch
    bool wants_fetch = false;
  };
  struct Place {  // at the acceptor: where the peer wants the payload of the reply
    std::vector<Segment> segments;
  };

  // ChannelUser
  void message_arrived(std::span<const std::byte> bytes) override;
  void fetch_done(uint64_t fetch, std::vector<Blocks> memory) override;
  void channel_failed(const std::string& reason) override;

  // sending
  void schedule_pump();
  void pump();
  bool post_first();
  bool shape_of(const Outgoing& frame, Shape& shape);
  bool resources_available(const Shape& shape, size_t credits_kept);
  void post_frame(Outgoing& frame, const Shape& shape);
  std::vector<Segment> fill_blocks(const Outgoing& frame, const Shape& shape, Blocks& blocks,
                                   std::vector<Work>& works);
  void post_message(MessageHead head, std::span<const Segment> segments,
                    std::span<const std::byte> frame_head, std::span<const std::byte> payload,
                    std::vector<Work>& works, Posted posted);
  void post_credits();
  void wait_for_port(Port::Way way);
  void call_sendable();

  // receiving
  bool take_frame(Message& message);
  bool take_more(const Message& message);
  bool bulk_fits(const Message& message) const;
  void release_fetched(uint32_t fetched);
  void drain();
  void start_fetches();
  void post_fetch(Arrival& arrival, size_t block_count);
  bool deliver(Arrival& arrival);  // false: paused or cut
  bool place_fits(const FrameHeader& header, const Arrival& arrival) const;
  void keep_place(const FrameHeader& header, Arrival& arrival);
  bool take_payload(const FrameHeader& header, Arrival& arrival, std::span<const std::byte> body,
                    std::span<std::byte>& payload, bool& discard);
  void consumed(const FrameHeader& header);
  void watch_socket();

  net::EventLoop& loop_;
  net::UniqueFd socket_;
  std::shared_ptr<Channel> channel_;
  Port& port_;
  net::StreamSink& sink_;
  const net::StreamLimits limits_;
  net::Clock::time_point received_at_;

  std::deque<Outgoing> queue_;
  size_t bytes_queued_ = 0;
  uint32_t credits_;           // messages that the peer can take
  uint32_t credits_owed_ = 0;  // consumed messages that the peer was not told of
  // Frames fetched since the connection began; every message reports it.
  uint32_t fetched_ = 0;
  size_t fetched_unreported_ = 0;                // bytes fetched since the last message
  uint32_t released_ = 0;                        // frames of this end that the peer has fetched
  std::deque<Blocks> lent_;                      // payloads that the peer will fetch, in order
  std::unordered_map<uint64_t, Blocks> places_;  // at the initiator: places for replies
  // at the acceptor: places that the peer offered
  std::unordered_map<uint64_t, Place> peer_places_;
  std::deque<Arrival> arrivals_;
  uint32_t head_missing_ = 0;  // bytes of the last arrival's head that are still to come
  uint64_t next_fetch_ = 1;
  std::vector<uint64_t> body_;  // aligned copy of the body that is being delivered

  size_t blocks_held_ = 0;  // at the initiator: blocks lent to the peer
  // It lacks something that the port shares, so it waits in the port's line.
  bool lacks_out_ = false;
  bool lacks_in_ = false;
  bool refused_send_ = false;
  bool pump_scheduled_ = false;
  bool receiving_ = true;
  bool paused_ = false;
  bool draining_ = false;
  bool registered_ = false;
  bool started_ = false;
  bool cut_ = false;
  int error_ = 0;
  std::string reason_;
  std::shared_ptr<bool> alive_;
};

// Opens the stream of an authenticated connection: over `channel` if there is one, else over the
// socket.
std::unique_ptr<net::Stream> open_stream(net::EventLoop& loop, net::Socket socket,
                                         std::shared_ptr<Channel> channel, net::StreamSink& sink,
                                         net::StreamLimits limits = {});

}  // namespace braidfs::rdma
