// One adopted connection: it admits frames, bounds the requests in flight, and sends replies.
//
// Life: kWaiting (the connection that it replaces still has requests that run; nothing is read) ->
// kServing -> kClosing (the stream is cut, running requests end) -> kEnded (reported, and forgotten
// by the lane).
//
// Invariants: a reply is sent only while kServing; no request of a successor is read before this
// connection is kEnded (rule 23); in_flight counts requests until their reply was sent, and reading
// stops at kInFlightMax (what one receive has taken in already is still accepted).
//
// Threads: LANE ONLY. Not here: what an operation does (operations.h), whose turn for memory it is
// (lane.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/socket.h"
#include "net/stream.h"
#include "rdma/channel.h"
#include "server/admission.h"
#include "server/capability.h"
#include "server/request.h"
#include "server/session_table.h"

namespace braidfs::server {

class Lane;

struct Adoption {
  net::Socket socket;
  std::shared_ptr<rdma::Channel> channel{};  // frames go over it instead of the socket
  Purpose purpose = Purpose::kData;
  uint64_t session = 0;
  uint64_t connection = 0;
  uint64_t previous = 0;
};

class Connection final : public net::StreamSink, public std::enable_shared_from_this<Connection> {
 public:
  static constexpr uint32_t kInFlightMax = limits::kRequestsInFlightMax;

  Connection(Lane& lane, Adoption adoption);
  ~Connection() override;

  uint64_t session() const { return session_; }
  uint64_t id() const { return id_; }
  Purpose purpose() const { return purpose_; }
  size_t in_flight() const { return in_flight_; }
  bool closing() const { return phase_ == Phase::kClosing || phase_ == Phase::kEnded; }
  bool ended() const { return phase_ == Phase::kEnded; }

  // Begins to serve: now, or when the connection that it replaces has ended.
  void begin(bool wait_for_predecessor);
  void predecessor_ended();
  void replaced_by(std::shared_ptr<Connection> successor);
  void close(int error, std::string reason);

  void reply(std::shared_ptr<Request> request);
  // True when this connection may hold `bytes` more of the lane's memory: up to a quarter of what
  // is free, so that a dozen peers that do not read their replies leave some to others. A
  // connection that holds nothing may always wait for memory.
  bool may_hold(size_t bytes) const;
  // Keeps a READ beyond that share. It runs when earlier replies have been sent; nothing more is
  // received until then.
  void hold_back(std::shared_ptr<Request> request);
  void count_held(size_t bytes) { held_bytes_ += bytes; }
  void count_released(size_t bytes) { held_bytes_ -= bytes; }
  // Called when memory came back: goes on with the payload that had no buffer.
  void resume();
  bool stalled_since(net::Clock::time_point when) const;
  // Since when the client has sent no request and waits for no answer. nullopt: it is not idle, or
  // the connection is not a client's.
  std::optional<net::Clock::time_point> idle_since() const;

  net::PayloadPlace payload_buffer(const FrameHeader& header,
                                   std::span<const std::byte> body) override;
  bool frame(const FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override;
  void closed(int error, const std::string& reason) override;

 private:
  friend struct Request;
  enum class Phase : uint8_t { kWaiting, kServing, kClosing, kEnded };

  bool well_formed(const FrameHeader& header);
  Status admit(const FrameHeader& header, std::span<const std::byte> body);
  Status check_capability(const FrameHeader& header, std::span<const std::byte> body);
  Status check_dropped(const FrameHeader& header, std::span<const std::byte> body);
  std::shared_ptr<Request> accept(const FrameHeader& header);
  void refuse(const FrameHeader& header, Status status);
  void fetch(const FrameHeader& header, std::span<const std::byte> body);
  void drop_names(const FrameHeader& header, std::span<const std::byte> body);
  void send_status(const FrameHeader& header, Status status);
  void request_dropped();
  void limit_reading();
  void run_held_back();
  void schedule_advance();
  void advance();
  void end_if_idle();

  Lane& lane_;
  const Purpose purpose_;
  const uint64_t session_;
  const uint64_t id_;
  std::shared_ptr<SessionState> state_;
  CapabilityCache capabilities_;
  net::Socket socket_;                      // until begin(); then the stream owns it
  std::shared_ptr<rdma::Channel> channel_;  // until begin() as well
  std::unique_ptr<net::Stream> stream_;
  Phase phase_ = Phase::kWaiting;
  bool predecessor_pending_ = false;
  bool receiving_ = true;
  bool advance_scheduled_ = false;
  size_t in_flight_ = 0;
  size_t held_bytes_ = 0;  // of the lane's memory
  std::deque<std::shared_ptr<Request>> held_back_;
  // A payload waits until other requests of this connection are stored.
  bool waits_for_own_ = false;
  // When a reply was last sent, or the first one was queued.
  net::Clock::time_point progress_at_;
  std::shared_ptr<Request> arriving_;  // a WRITE whose payload is arriving
  std::vector<std::shared_ptr<Connection>> successors_;
};

}  // namespace braidfs::server
