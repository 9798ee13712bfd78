// Which client sessions live, as the metaserver says.
//
// A connection keeps the SessionState of its session and reads it without a lock. Invariants:
// nothing is live before the first replace(); a fenced session never lives again (ids are not
// reused), so a table that was under way when the fence came cannot revive it; no client is served
// after the lease has run out (rule 15).
//
// Threads: ANY THREAD, guarded by mu_.
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
  // Sets the lease from the metaserver: clients are served until this time of CLOCK_BOOTTIME, which
  // also counts the host's sleep. Without a call, there is no end.
  void serve_until(int64_t deadline_ns) { until_ns_.store(deadline_ns, std::memory_order_release); }
  bool is_leased() const;
  // Replaces the whole table; sessions that are not in it are unknown from now on. Returns the
  // sessions that had connections and are gone.
  std::vector<uint64_t> replace(std::span<const uint64_t> live);
  void fence(uint64_t session);
  // Calls `ended` when the session has no connection: at once, or later on the thread that ends the
  // last one. False when too many wait already.
  bool when_ended(uint64_t session, std::function<void()> ended);

  // The server stops: drops all waiting calls.
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
  std::unordered_map<uint64_t, std::shared_ptr<SessionState>> states_;  // those with connections
};

}  // namespace braidfs::server
