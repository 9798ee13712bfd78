// One lane's connection to one node: calls in flight, calls that wait, and what happens when the
// connection breaks.
//
// A link is either connected, or has requested a connection (a CONNECT event), with backoff after
// failures. Calls wait in two queues, so that a READ never waits behind megabytes of writes; the
// bytes of writes in flight are bounded. Small writes that nobody waits for leave together: for
// gather_ms after some have left, the next ones gather, until there are kGatherMax of them or
// somebody begins to wait (hurry). Then one wake-up of the server, and one of this lane, serve
// many. When the connection breaks, unanswered calls go back to the front of their queues in their
// old order, and are sent again on the next connection: every data operation may be repeated, since
// the server ends the requests of the old connection first (rule 23). A connection that owes
// answers and is silent gets a PING, which a server answers from its event loop whatever its disks
// do. Without an answer the link makes another connection beside it, which takes its place; at last
// the silent one is cut. Where the cluster map says that the node is down, all this comes in a
// third of the time; when the map says that it is up again, no backoff is waited for. Where other
// connections to the node were silent until they were cut, and new ones fail, it comes in a tenth,
// and calls count as waiting for as long as the node has been missing (missing_servers.h).
//
// Invariant: a call is in exactly one of: a slot, a queue, the lane's list of resting calls.
// Threads: LANE ONLY. Not here: what a status means for a call (lane.h).
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/call.h"
#include "net/socket.h"
#include "net/stream.h"
#include "rdma/channel.h"

namespace braidfs::client {

class Link final : public net::StreamSink {
 public:
  static constexpr uint32_t kSlotCount = 512;  // below limits::kRequestsInFlightMax of the server
  static constexpr uint64_t kWriteBytesMax = 16u << 20;
  static constexpr uint32_t kGatherBytesMax = 16u << 10;  // a larger write does not wait
  static constexpr size_t kGatherMax = 32;
  static constexpr uint64_t kPingId = ~uint64_t{0};  // no call's

  Link(Lane& lane, uint32_t node);
  ~Link() override;

  uint32_t node() const noexcept { return node_; }
  bool connected() const noexcept { return stream_ != nullptr && stream_->is_open(); }
  bool is_local() const noexcept { return is_local_; }  // its server was on this host
  size_t in_flight() const noexcept { return in_flight_; }
  // It has not answered a call for so long that nobody waits for that any more.
  bool is_stuck() const noexcept { return abandoned_ != 0; }
  size_t waiting() const noexcept { return reads_.size() + writes_.size(); }

  void submit(Call* call);
  void hurry();  // somebody waits for writes that may be among the gathering ones
  void adopt(net::Socket socket, std::shared_ptr<rdma::Channel> channel);
  void connect_failed();
  // The cluster map says that a target of this node is down, or that all are up.
  void suspect(bool on);
  // The lane calls it at each tick: it looks at deadlines, silence and reconnecting.
  void tick(Clock::time_point now);
  void excuse(Clock::duration late) noexcept { silent_since_ += late; }
  // Fails every call with this status. Calls whose memory is lent end when the connection frees it.
  void fail_all(Status status);
  void cut(const std::string& reason);

  // net::StreamSink
  net::PayloadPlace payload_buffer(const FrameHeader& header,
                                   std::span<const std::byte> body) override;
  bool frame(const FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override;
  void closed(int error, const std::string& reason) override;
  void sendable() override;

 private:
  void ask_for_connection(Clock::time_point now);
  void attempt_ended();
  // Since when the server has not been there: since then, or longer if other lanes have found so.
  Clock::time_point missing_since(Clock::time_point since);
  void pump();
  bool pump_queue(std::deque<Call*>& queue);
  bool may_send(const Call& call) const noexcept;
  bool may_gather(const Call& call) const noexcept;
  bool gathers();
  bool send(Call* call);
  Call* find(const FrameHeader& header) noexcept;
  Call* take(uint64_t request_id) noexcept;
  bool check_reply(const Call& call, const FrameHeader& header, std::span<const std::byte> body,
                   std::span<const std::byte> payload, Status& status) const;
  void watch_silence(Clock::time_point now);
  void look_at_bound(Clock::time_point now);
  void look_at_reads(Clock::time_point now);
  void abandon(Call* call, std::shared_ptr<CallOwner> lent, Status status);
  void ping();
  void heard() noexcept;
  void expire(std::deque<Call*>& queue, Clock::time_point now);
  void fail_queue(std::deque<Call*>& queue, Status status);
  void requeue_unanswered();

  Lane& lane_;
  const uint32_t node_;
  std::unique_ptr<net::Stream> stream_;
  std::vector<Call*> slots_;    // by request_id % kSlotCount
  std::vector<uint32_t> free_;  // slot numbers
  uint64_t rounds_ = 1;
  size_t in_flight_ = 0;
  size_t abandoned_ = 0;      // of these
  uint64_t arriving_ = 0;     // the request_id of a READ of whose answer a part may have come
  uint64_t write_bytes_ = 0;  // in flight
  bool gathering_ = true;     // nobody waits for any of writes_
  bool gather_timer_ = false;
  Clock::time_point gather_until_{};
  std::deque<Call*> reads_;     // READ, SYNC
  std::deque<Call*> writes_;    // WRITE
  std::vector<uint64_t> sums_;  // scratch
  bool asked_ = false;          // for a connection
  bool answered_ = false;       // the server has answered a request on this connection
  uint32_t failures_ = 0;
  std::minstd_rand chance_;
  Clock::time_point ask_again_{};
  Clock::time_point asked_at_{};
  Clock::time_point silent_since_{};
  Clock::time_point write_answered_{};
  bool is_local_ = false;
  bool pinged_ = false;  // since silent_since_
  bool suspected_ = false;
};

}  // namespace braidfs::client
