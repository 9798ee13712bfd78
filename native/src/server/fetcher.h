// Reads objects of small files into the page cache before clients ask for them
// (docs/decisions/0049-fetched-ahead.md).
//
// Waiting objects are fetched in the order of file ids, upwards and then from the beginning again:
// files made one after another lie in that order on the disk. A bounded number of bytes is under
// way at a time, and a bounded number may be fetched and not yet read; after kUnreadFor an object
// no longer counts. A request without room is refused. One thread fetches, and its I/O has normal
// priority, because readers may wait for pages that it requested.
//
// Threads: ANY THREAD, guarded by mu_; stop() is called before the targets end.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/clock.h"
#include "server/target_table.h"
#include "store/chunk_store.h"

namespace braidfs::server {

class Fetcher {
 public:
  using Clock = braidfs::Clock;
  static constexpr size_t kQueueMax = 1u << 17;
  static constexpr size_t kUnreadMax = 1u << 20;
  static constexpr std::chrono::minutes kUnreadFor{10};
  // For each target; reads that somebody waits for queue behind these bytes.
  static constexpr uint64_t kUnderWayMax = 1u << 20;

  struct Wanted {
    store::ObjectId object;
    uint32_t target = 0;
    uint32_t length = 0;
  };

  // unread_bytes_max bounds what was fetched and not read yet.
  Fetcher(const TargetTable& targets, uint64_t unread_bytes_max);
  ~Fetcher() { stop(); }
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  void stop();

  // Adds objects to be fetched. False: there is no room for all of them, and the rest is not
  // fetched.
  bool want(std::span<const Wanted> wanted, Clock::time_point now);
  // A client reads the beginning of the object.
  void was_read(uint32_t target, store::ObjectId object) {
    if (unread_count_.load(std::memory_order_relaxed) > 0) forget({object, target});
  }

  struct Counts {
    uint64_t objects = 0;
    uint64_t bytes = 0;
    uint64_t used = 0;     // objects that were read after that
    uint64_t unused = 0;   // objects that nobody read
    uint64_t refused = 0;  // requests
  };
  Counts counts() const;

 private:
  using Key = std::pair<store::ObjectId, uint32_t>;
  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };
  struct Unread {
    Key key{};
    uint32_t length = 0;
    Clock::time_point since{};
  };
  using Place = std::list<Unread>::iterator;
  struct UnderWay {
    store::Fetching what;
    uint32_t length = 0;
  };

  void run();
  void fetch(const Key& key, uint32_t length);
  void forget(const Key& key);
  // ---- LOCKED ----
  bool has_room(uint32_t length) const;
  void drop(Place unread);
  void expire(Clock::time_point now);
  std::pair<Key, uint32_t> take_next();

  const TargetTable& targets_;
  const uint64_t unread_bytes_max_;
  mutable std::mutex mu_;
  std::condition_variable work_;
  std::set<Key> queue_;       // a subset of unread_
  Key cursor_{};              // the search for the next object begins here
  std::list<Unread> unread_;  // oldest first; includes those in the queue
  std::unordered_map<Key, Place, Hash> places_;
  uint64_t unread_bytes_ = 0;
  std::atomic<size_t> unread_count_{0};
  Counts counts_;
  bool stopping_ = false;

  // ---- used by the thread only ----
  std::deque<UnderWay> under_way_;
  uint64_t under_way_bytes_ = 0;
  std::thread thread_;
};

}  // namespace braidfs::server
