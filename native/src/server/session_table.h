// Which clients live, as the metaserver says. ANY THREAD, guarded by mu_; a connection keeps the
// SessionState of its session and asks it without a lock.
// Invariants: nothing is live before the first replace(); a fenced session never lives again (its
// id is not reused), so a table that was on its way when the fence came cannot revive it; no client
// is served once the lease has run out (rule 15).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "braidfs/status.h"

namespace braidfs::server {

class SessionState {
 public:
  enum class Life : uint8_t { kUnknown, kLive, kFenced };

  Life life() const { return life_.load(std::memory_order_acquire); }

 private:
  friend class SessionTable;
  std::atomic<Life> life_{Life::kUnknown};
  size_t connections_ = 0;                      // registered and not ended; guarded by the table
  std::vector<std::function<void()>> waiting_;  // run when connections_ falls to 0
};

class SessionTable {
 public:
  static constexpr size_t kFencedMax = 65536;
  static constexpr size_t kWaitersMax = 1024;

  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // The lease with the metaserver: clients are served until this time of CLOCK_BOOTTIME (which
  // also counts a host's sleep). For ever as long as nobody sets it.
  void serve_until(int64_t deadline_ns) { until_ns_.store(deadline_ns, std::memory_order_release); }
  bool is_leased() const;
  // The whole table; sessions that are not in it are unknown from now on. Returns those that had
  // connections and are gone.
  std::vector<uint64_t> replace(std::span<const uint64_t> live);
  void fence(uint64_t session);
  // Calls ended (here, or later on whatever thread ends the last one) once the session has no
  // connection. False when too many wait already.
  bool when_ended(uint64_t session, std::function<void()> ended);

  // The server stops: nobody waits any more.
  void forget_waiting();

  std::shared_ptr<SessionState> connection_added(uint64_t session);
  void connection_ended(uint64_t session);
  size_t connection_count(uint64_t session) const;
  size_t live_count() const;

 private:
  std::atomic<bool> ready_{false};
  std::atomic<int64_t> until_ns_{std::numeric_limits<int64_t>::max()};
  mutable std::mutex mu_;
  std::unordered_set<uint64_t> live_;
  std::unordered_set<uint64_t> fenced_;
  std::deque<uint64_t> fenced_order_;
  std::unordered_map<uint64_t, std::shared_ptr<SessionState>> states_;  // with connections
};

}  // namespace braidfs::server
