// A cache directory in use: what lanes read is assembled to slices, which a thread of its own
// writes.
//
// Lanes never wait for it: what it cannot take at once (more than kQueueBytesMax already lent) is
// dropped.
//
// Threads: offer(), find() and corrupt() are ANY THREAD; stop() is called once, by the owner of the
// lanes. Not here: how lanes read (client/local_cache.h).
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
#include "cache/slice_assembly.h"
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
  // Offers a part of a slice of `length` bytes, which a READ brought that the cache did not answer.
  void offer(const SliceKey& key, uint64_t stamp, uint32_t length, Part part);
  // Waits until everything offered was written or dropped. For tests.
  void wait_idle();
  void stop();  // writes what is waiting

  Copies* copies() noexcept { return copies_.get(); }  // nullptr: copies are off

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  Cache(std::unique_ptr<Store> store, const StoreSettings& settings);
  void run();

  const std::unique_ptr<Store> store_;
  std::unique_ptr<Copies> copies_;
  std::mutex mu_;
  std::condition_variable changed_;
  SliceAssembly assembly_;    // guarded by mu_
  std::deque<Slice> queue_;   // guarded by mu_
  uint64_t queue_bytes_ = 0;  // guarded by mu_; includes what is being written
  bool stopping_ = false;     // guarded by mu_
  std::atomic<uint64_t> dropped_ = 0;
  std::thread writer_;
};

}  // namespace braidfs::cache
