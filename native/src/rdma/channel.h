// One reliable queue pair and what is posted to it: who owns which slot and block until when.
//
// Work is posted in chains, one entry of the ring each; completions end all entries up to theirs,
// so that not every chain needs one. Memory of an entry returns with it. Messages that come before
// a stream is bound wait here (a peer may speak as soon as it is connected), at most its credits.
// Threads: LANE ONLY, except connect(): before any stream.
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

// What a chain holds until it completed.
struct Posted {
  std::vector<Blocks> memory;
  uint64_t fetch = 0;  // not 0: tell fetch_done()
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
  // 0 or -errno; -EPROTO: what the peer says of itself makes no sense.
  int connect(const Peer& peer);
  uint32_t peer_credits() const noexcept { return peer_.credits; }
  uint32_t credits_given() const noexcept { return credits_given_; }

  Port& port() noexcept { return port_; }
  void bind(ChannelUser& user);
  void unbind() noexcept { user_ = nullptr; }

  bool has_room(uint32_t works) const noexcept;
  // works: the last one may get signalled. False: it could not be posted, and the channel failed.
  bool post(std::span<Work> works, Posted posted);
  void fail() noexcept;
  // Memory that the peer may still have access to: goes after the queue pair.
  void keep(Blocks blocks) { kept_.push_back(std::move(blocks)); }
  // Posts a mark behind everything else, on the failed queue pair: when it was flushed, all is.
  void drain() noexcept;
  bool is_drained() const noexcept { return ring_.empty(); }

  // From the port.
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
  const uint32_t credits_given_;  // to the peer
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
