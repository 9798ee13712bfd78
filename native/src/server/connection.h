// One adopted connection: admits its frames, bounds what it may have in flight, sends its replies.
// LANE ONLY.
//
// Life: kWaiting (the connection it replaces has requests that run; nothing is read) → kServing →
// kClosing (the stream is cut, requests that run end) → kEnded (reported, forgotten by the lane).
// Invariants: a reply is sent only while kServing; no request of a successor is read before this
// one is kEnded (rule 23); in_flight counts requests until their reply left, and reading stops at
// kInFlightMax (what one receive had already taken in is still accepted).
// Not here: what an operation does (operations.h), whose turn for memory it is (lane.h).
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
  std::shared_ptr<rdma::Channel> channel{};  // frames go over it instead
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

  // Begins to serve, now or when the connection that it replaces has ended.
  void begin(bool wait_for_predecessor);
  void predecessor_ended();
  void replaced_by(std::shared_ptr<Connection> successor);
  void close(int error, std::string reason);

  void reply(std::shared_ptr<Request> request);
  // Whether it may have so much more of the lane's memory: a quarter of what is free, so that a
  // dozen peers that do not take their answers leave others some. Who has nothing may always wait
  // for it.
  bool may_hold(size_t bytes) const;
  // A READ beyond that: it runs when answers of before have left, and nothing more is received
  // until then.
  void hold_back(std::shared_ptr<Request> request);
  void holds(size_t bytes) { held_bytes_ += bytes; }
  void lets_go(size_t bytes) { held_bytes_ -= bytes; }
  // Memory came back: go on with the payload that had no place.
  void resume();
  bool stalled_since(net::Clock::time_point when) const;
  // Since when a client has asked for nothing and is owed nothing; nullopt: it is, or this is no
  // client's.
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
  std::shared_ptr<Request> accept(const FrameHeader& header);
  void refuse(const FrameHeader& header, Status status);
  void fetch(const FrameHeader& header, std::span<const std::byte> body);
  void send_status(const FrameHeader& header, Status status);
  void request_dropped();
  void limit_reading();
  void run_held_back();
  void schedule_settle();
  void settle();
  void end_if_idle();

  Lane& lane_;
  const Purpose purpose_;
  const uint64_t session_;
  const uint64_t id_;
  std::shared_ptr<SessionState> state_;
  CapabilityCache capabilities_;
  net::Socket socket_;                      // until begin(); then the stream's
  std::shared_ptr<rdma::Channel> channel_;  // until begin(), too
  std::unique_ptr<net::Stream> stream_;
  Phase phase_ = Phase::kWaiting;
  bool predecessor_pending_ = false;
  bool receiving_ = true;
  bool settle_scheduled_ = false;
  size_t in_flight_ = 0;
  size_t held_bytes_ = 0;  // of the lane's memory
  std::deque<std::shared_ptr<Request>> held_back_;
  bool waits_for_own_ = false;          // a payload, until others of this connection are stored
  net::Clock::time_point progress_at_;  // when a reply last left, or the first one was queued
  std::shared_ptr<Request> arriving_;   // a WRITE whose payload comes in
  std::vector<std::shared_ptr<Connection>> successors_;
};

}  // namespace braidfs::server
