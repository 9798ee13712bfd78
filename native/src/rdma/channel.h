// One reliable queue pair and the work posted to it: which entry owns which slot and block until
// when.
//
// Work is posted in chains; each chain is one entry of the ring. A completion ends all entries up
// to its own, so not every chain needs one. The memory of an entry returns when the entry ends.
// Messages that arrive before a stream is bound wait here, at most as many as the peer has credits
// (a peer may send as soon as it is connected).
//
// Threads: LANE ONLY, except connect(), which is called before there is a stream.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rdma/arena.h"
#include "rdma/port.h"
#include "rdma/verbs.h"

namespace braidfs::rdma {

class ChannelUser {
 public:
  virtual ~ChannelUser() = default;
  virtual void message_arrived(std::span<const std::byte> message) = 0;
  virtual void fetch_done(uint64_t fetch, std::vector<Blocks> memory) = 0;
  virtual void channel_failed(const std::string& reason) = 0;
};

// What a chain of work holds until it has completed.
struct Posted {
  std::vector<Blocks> memory;
  uint64_t fetch = 0;  // not 0: fetch_done() is called with it
  bool must_signal = false;
};

class Channel {
 public:
  Channel(Port& port, std::unique_ptr<QueuePair> pair, uint32_t credits_given);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint32_t number() const noexcept { return number_; }
  Peer local() const noexcept;
  // 0 or -errno. -EPROTO: the peer's description of itself is not valid.
  int connect(const Peer& peer);
  uint32_t peer_credits() const noexcept { return peer_.credits; }
  uint32_t credits_given() const noexcept { return credits_given_; }

  Port& port() noexcept { return port_; }
  void bind(ChannelUser& user);
  void unbind() noexcept { user_ = nullptr; }

  bool has_room(uint32_t works) const noexcept;
  // Posts a chain; its last work may be marked as signalled. False: it could not be posted, and the
  // channel has failed.
  bool post(std::span<Work> works, Posted posted);
  void fail() noexcept;
  // Keeps memory that the peer may still access until after the queue pair is destroyed.
  void keep(Blocks blocks) { kept_.push_back(std::move(blocks)); }
  // Posts a mark behind all other work, on the failed queue pair. When the mark was flushed, all
  // work was.
  void drain() noexcept;
  bool is_drained() const noexcept { return ring_.empty(); }

  // Called by the port.
  void received(std::span<const std::byte> message);
  void completed(const Completion& completion);
  void failed(int status);
  void lost(const std::string& reason);

 private:
  struct Entry {
    uint64_t id;
    uint32_t works;
    Posted posted;
  };

  void end_first(bool done);

  Port& port_;
  std::unique_ptr<QueuePair> pair_;
  const uint32_t number_;
  const uint32_t credits_given_;  // that the peer was given
  Peer peer_{};
  ChannelUser* user_ = nullptr;
  std::deque<Entry> ring_;
  std::vector<Blocks> kept_;
  std::vector<std::vector<std::byte>> early_;
  std::string failure_;
  uint64_t next_id_ = 1;
  uint32_t works_ = 0;
  uint32_t silent_ = 0;  // chains since the last signalled one
  bool failed_ = false;
};

}  // namespace braidfs::rdma
