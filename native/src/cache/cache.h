// A cache directory in use: what lanes read is gathered to slices and written by a thread of its
// own.
//
// Lanes never wait for it: what it cannot take at once (kQueueBytesMax lent already) is dropped.
// Threads: offer(), find(), corrupt() ANY THREAD; stop() once, by whoever ends the lanes. Not here:
// how lanes read (client/local_cache.h).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/copies.h"
#include "cache/gather.h"
#include "cache/store.h"

namespace braidfs::cache {

class Cache {
 public:
  static constexpr uint64_t kQueueBytesMax = 48u << 20;

  static std::unique_ptr<Cache> open(const StoreSettings& settings, std::string& reason);
  ~Cache() { stop(); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  std::optional<Store::Found> find(const SliceKey& key, uint64_t stamp) {
    return store_->find(key, stamp);
  }
  bool has(const SliceKey& key, uint64_t stamp) { return store_->has(key, stamp); }
  void corrupt(const SliceKey& key, const Store::Found& found) { store_->corrupt(key, found); }
  // A part of a slice of that length was read, by a READ that the cache did not answer.
  void offer(const SliceKey& key, uint64_t stamp, uint32_t length, Part part);
  // Everything that was offered is written, or was dropped. For tests.
  void settle();
  void stop();  // writes what waits

  Copies* copies() noexcept { return copies_.get(); }  // nullptr: there are to be none

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  Cache(std::unique_ptr<Store> store, const StoreSettings& settings);
  void run();

  const std::unique_ptr<Store> store_;
  std::unique_ptr<Copies> copies_;
  std::mutex mu_;
  std::condition_variable changed_;
  Gather gather_;             // guarded by mu_
  std::deque<Slice> queue_;   // guarded by mu_
  uint64_t queue_bytes_ = 0;  // guarded by mu_: also of the one that is being written
  bool stopping_ = false;     // guarded by mu_
  std::atomic<uint64_t> dropped_ = 0;
  std::thread writer_;
};

}  // namespace braidfs::cache
