// Verbs in memory, for tests: a fabric of queue pairs that executes posted work at once, unless a
// test holds it back, lets it go on in a random order across queue pairs, fails the nth piece of
// work, or removes a peer. It checks keys and bounds as a device does, and counts violations.
// Messages that a queue pair had received and that no program took are lost with it, slots
// included, as on real cards.
//
// ANY THREAD: the fabric has one mutex.
#pragma once
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "rdma/verbs.h"

namespace braidfs::rdma::fake {

enum Status : int { kOk = 0, kFlushed = 5, kAccess = 10, kRetries = 12 };

class Queue;
class Receives;
class Pair;

class Fabric {
 public:
  // ---- what tests do ----
  void hold(bool on) {
    const std::scoped_lock lock(mu_);
    held_ = on;
    if (!on) run_all();
  }
  // Executes one piece of held work of a random queue pair; false when there was none.
  bool step(std::mt19937& random);
  // The nth piece of work from now on (1: the next) ends with this status.
  void fail_after(size_t count, int status) {
    const std::scoped_lock lock(mu_);
    fail_in_ = count;
    fail_status_ = status;
  }
  void lose(uint32_t number);     // the queue pair no longer answers
  void give_up(uint32_t number);  // the device fails the queue pair and reports it by an event
  size_t works_done() const { return works_done_; }
  size_t pairs() const {
    const std::scoped_lock lock(mu_);
    return pairs_.size();
  }
  size_t regions() const {
    const std::scoped_lock lock(mu_);
    return regions_.size();
  }
  size_t bytes_registered() const {
    const std::scoped_lock lock(mu_);
    size_t bytes = 0;
    for (const auto& [key, memory] : regions_) bytes += memory.bytes.size();
    return bytes;
  }
  size_t slots_posted() const;  // the sum over all receive queues

 private:
  friend class FakeDevice;
  friend class FakeRegion;
  friend class Queue;
  friend class Receives;
  friend class Pair;
  struct Memory {
    std::span<std::byte> bytes;
    bool remote = false;
  };

  void run_all();
  bool run_one(Pair& pair);  // false if there is no work, or it must wait
  int perform(Pair& pair, const Work& work, Pair* peer, bool& wait);
  int move_bytes(const Work& work, const Pair& peer);
  void post(Pair& pair, std::span<const Work> chain);
  void complete(Pair& pair, const Work& work, int status);
  void break_pair(Pair& pair);

  mutable std::mutex mu_;
  bool held_ = false;
  size_t fail_in_ = 0;
  int fail_status_ = 0;
  std::atomic<size_t> works_done_ = 0;
  uint32_t next_number_ = 100;
  uint32_t next_key_ = 1000;
  std::map<uint32_t, Pair*> pairs_;
  std::map<uint32_t, Pair*> busy_;  // the queue pairs that have work
  std::set<Receives*> receives_;
  std::map<uint32_t, Memory> regions_;
};

class FakeRegion final : public Region {
 public:
  FakeRegion(Fabric& fabric, uint32_t key) : fabric_(fabric), key_(key) {}
  ~FakeRegion() override {
    const std::scoped_lock lock(fabric_.mu_);
    fabric_.regions_.erase(key_);
  }
  uint32_t local_key() const noexcept override { return key_; }
  uint32_t remote_key() const noexcept override { return key_; }

 private:
  Fabric& fabric_;
  const uint32_t key_;
};

class Queue final : public CompletionQueue {
 public:
  Queue(Fabric& fabric, uint32_t depth)
      : fabric_(fabric), depth_(depth), event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Queue() override { ::close(event_); }
  int fd() const noexcept override { return event_; }
  int acknowledge() override {
    uint64_t count;
    (void)!::read(event_, &count, sizeof count);
    return 0;
  }
  int arm() override {
    const std::scoped_lock lock(fabric_.mu_);
    armed_ = true;
    return 0;
  }
  int poll(std::span<Completion> into) override {
    const std::scoped_lock lock(fabric_.mu_);
    if (overrun_) return -EIO;
    size_t count = 0;
    for (; count < into.size() && !done_.empty(); ++count) {
      into[count] = done_.front();
      done_.pop_front();
    }
    return static_cast<int>(count);
  }
  void forget(uint32_t queue_pair) {  // the caller holds the fabric's mutex, as for put()
    std::erase_if(done_, [&](const Completion& one) { return one.queue_pair == queue_pair; });
  }
  void put(const Completion& completion) {
    overrun_ = overrun_ || done_.size() >= depth_;
    done_.push_back(completion);
    if (!std::exchange(armed_, false)) return;
    const uint64_t one = 1;
    (void)!::write(event_, &one, sizeof one);
  }

 private:
  Fabric& fabric_;
  const uint32_t depth_;
  const int event_;
  bool armed_ = false;
  bool overrun_ = false;
  std::deque<Completion> done_;
};

class Receives final : public ReceiveQueue {
 public:
  explicit Receives(Fabric& fabric) : fabric_(fabric) {
    const std::scoped_lock lock(fabric_.mu_);
    fabric_.receives_.insert(this);
  }
  ~Receives() override {
    const std::scoped_lock lock(fabric_.mu_);
    fabric_.receives_.erase(this);
  }
  int post(std::span<const Receive> receives) override {
    const std::scoped_lock lock(fabric_.mu_);
    places_.insert(places_.end(), receives.begin(), receives.end());
    fabric_.run_all();
    return 0;
  }
  std::deque<Receive> places_;

 private:
  Fabric& fabric_;
};

class Pair final : public QueuePair {
 public:
  Pair(Fabric& fabric, const QueuePairSpec& spec, std::vector<uint32_t>& events)
      : fabric_(fabric), spec_(spec), events_(events) {
    number_ = fabric_.next_number_++;
    fabric_.pairs_[number_] = this;
  }
  ~Pair() override {
    const std::scoped_lock lock(fabric_.mu_);
    fabric_.pairs_.erase(number_);
    fabric_.busy_.erase(number_);
    static_cast<Queue*>(spec_.completions)->forget(number_);
  }
  Peer local() const noexcept override {
    Peer self;
    self.queue_pair = number_;
    self.mtu = 3;
    self.reads_max = 16;
    return self;
  }
  int connect(const Peer& peer) override {
    const std::scoped_lock lock(fabric_.mu_);
    peer_ = peer.queue_pair;
    fabric_.run_all();
    return 0;
  }
  int post(std::span<const Work> chain) override {
    const std::scoped_lock lock(fabric_.mu_);
    if (pending_.size() + chain.size() > spec_.work_max) return -ENOMEM;
    fabric_.post(*this, chain);
    return 0;
  }
  void fail() noexcept override {
    const std::scoped_lock lock(fabric_.mu_);
    fabric_.break_pair(*this);
  }

 private:
  friend class Fabric;
  Fabric& fabric_;
  const QueuePairSpec spec_;
  std::vector<uint32_t>& events_;  // these belong to the device
  uint32_t number_ = 0;
  uint32_t peer_ = 0;
  bool failed_ = false;
  bool lost_ = false;
  std::deque<Work> pending_;
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(Fabric& fabric) : fabric_(fabric) {}
  int register_memory(std::span<std::byte> memory, bool remote_access,
                      std::unique_ptr<Region>& region) override {
    const std::scoped_lock lock(fabric_.mu_);
    if (memory.size() > memlock) return -ENOMEM;
    const uint32_t key = fabric_.next_key_++;
    fabric_.regions_[key] = {memory, remote_access};
    region = std::make_unique<FakeRegion>(fabric_, key);
    return 0;
  }
  int make_completion_queue(uint32_t depth, std::unique_ptr<CompletionQueue>& made) override {
    made = std::make_unique<Queue>(fabric_, depth);
    return 0;
  }
  int make_receive_queue(uint32_t, std::unique_ptr<ReceiveQueue>& made) override {
    made = std::make_unique<Receives>(fabric_);
    return 0;
  }
  int make_queue_pair(const QueuePairSpec& spec, std::unique_ptr<QueuePair>& made) override {
    const std::scoped_lock lock(fabric_.mu_);
    made = std::make_unique<Pair>(fabric_, spec, events_);
    return 0;
  }
  // The bytes are those of the memfd behind the descriptor.
  int register_dmabuf(const Dmabuf& memory, bool remote_access,
                      std::unique_ptr<Region>& region) override {
    if (!takes_dmabuf) return -EOPNOTSUPP;
    dmabufs.push_back(memory);
    return register_memory({reinterpret_cast<std::byte*>(memory.address), memory.length},
                           remote_access, region);
  }
  std::string describe(int status) const override { return "status " + std::to_string(status); }
  bool take_events(std::vector<uint32_t>& failed_pairs) override {
    const std::scoped_lock lock(fabric_.mu_);
    failed_pairs.insert(failed_pairs.end(), events_.begin(), events_.end());
    events_.clear();
    return failed;
  }

  size_t memlock = ~size_t{0};
  bool failed = false;
  bool takes_dmabuf = false;
  std::vector<Dmabuf> dmabufs;

 private:
  Fabric& fabric_;
  std::vector<uint32_t> events_;  // guarded by the fabric's mutex
};

inline void Fabric::run_all() {
  if (held_) return;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto at = busy_.begin(); at != busy_.end();) {
      Pair& pair = *(at++)->second;  // it may be removed, and so may its peer
      const auto next = at == busy_.end() ? 0 : at->first;
      moved = run_one(pair) || moved;
      at = next == 0 ? busy_.end() : busy_.lower_bound(next);
    }
  }
}

inline size_t Fabric::slots_posted() const {
  const std::scoped_lock lock(mu_);
  size_t count = 0;
  for (const Receives* one : receives_) count += one->places_.size();
  return count;
}

inline void Fabric::post(Pair& pair, std::span<const Work> chain) {
  pair.pending_.insert(pair.pending_.end(), chain.begin(), chain.end());
  if (pair.failed_) return break_pair(pair);
  busy_[pair.number_] = &pair;
  run_all();
}

inline bool Fabric::step(std::mt19937& random) {
  const std::scoped_lock lock(mu_);
  std::vector<Pair*> ready;
  for (const auto& [number, pair] : busy_) ready.push_back(pair);
  std::shuffle(ready.begin(), ready.end(), random);
  for (Pair* pair : ready) {
    if (run_one(*pair)) return true;
  }
  return false;
}

inline void Fabric::lose(uint32_t number) {
  const std::scoped_lock lock(mu_);
  const auto found = pairs_.find(number);
  if (found != pairs_.end()) found->second->lost_ = true;
}

inline void Fabric::give_up(uint32_t number) {
  const std::scoped_lock lock(mu_);
  Pair& pair = *pairs_.at(number);
  break_pair(pair);
  pair.events_.push_back(number);
}

inline bool Fabric::run_one(Pair& pair) {
  if (pair.pending_.empty() || pair.failed_ || pair.peer_ == 0) return false;
  const Work work = pair.pending_.front();
  const auto found = pairs_.find(pair.peer_);
  Pair* const peer = found == pairs_.end() || found->second->lost_ || found->second->failed_
                         ? nullptr
                         : found->second;
  bool wait = false;
  int status = perform(pair, work, peer, wait);
  if (wait) return false;
  pair.pending_.pop_front();
  if (pair.pending_.empty()) busy_.erase(pair.number_);
  ++works_done_;
  if (status != kOk || work.signalled) complete(pair, work, status);
  if (status != kOk) {
    break_pair(pair);
    if (status == kAccess && peer != nullptr) {
      break_pair(*peer);
      peer->events_.push_back(peer->number_);
    }
  }
  return true;
}

inline int Fabric::perform(Pair& pair, const Work& work, Pair* peer, bool& wait) {
  if (fail_in_ > 0 && --fail_in_ == 0) return fail_status_;
  const auto own = regions_.find(work.local_key);
  if (own == regions_.end()) return kAccess;
  if (pair.lost_ || peer == nullptr) return kRetries;
  if (work.kind != Work::Kind::kSend) return move_bytes(work, *peer);
  auto& places = static_cast<Receives*>(peer->spec_.receives)->places_;
  if (peer->peer_ == 0 || places.empty()) {  // receiver not ready
    if (fail_in_ > 0) ++fail_in_;
    wait = true;
    return kOk;
  }
  const Receive place = places.front();
  places.pop_front();
  if (work.local.size() > place.local.size()) return kAccess;
  std::memcpy(place.local.data(), work.local.data(), work.local.size());
  static_cast<Queue*>(peer->spec_.completions)
      ->put({.id = place.id,
             .queue_pair = peer->number_,
             .length = static_cast<uint32_t>(work.local.size()),
             .status = kOk});
  return kOk;
}

inline int Fabric::move_bytes(const Work& work, const Pair& peer) {
  const auto region = regions_.find(work.remote_key);
  if (region == regions_.end() || !region->second.remote || !peer.spec_.remote_access)
    return kAccess;
  const auto bytes = region->second.bytes;
  const auto begin = reinterpret_cast<uint64_t>(bytes.data());
  if (work.remote_address < begin || work.remote_address - begin > bytes.size() ||
      bytes.size() - (work.remote_address - begin) < work.local.size()) {
    return kAccess;
  }
  std::byte* const remote = bytes.data() + (work.remote_address - begin);
  if (work.kind == Work::Kind::kWrite) {
    std::memcpy(remote, work.local.data(), work.local.size());
  } else {
    std::memcpy(work.local.data(), remote, work.local.size());
  }
  return kOk;
}

inline void Fabric::complete(Pair& pair, const Work& work, int status) {
  static_cast<Queue*>(pair.spec_.completions)
      ->put({.id = work.id, .queue_pair = pair.number_, .length = 0, .status = status});
}

inline void Fabric::break_pair(Pair& pair) {
  pair.failed_ = true;
  busy_.erase(pair.number_);
  for (const Work& work : std::exchange(pair.pending_, {})) complete(pair, work, kFlushed);
}

}  // namespace braidfs::rdma::fake
