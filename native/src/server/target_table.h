// The targets of this process. The table only grows: an open target stays until the lanes have
// ended, so lanes find it without a lock.
//
// Threads: ANY THREAD; add() is called by one thread at a time.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/clock.h"
#include "server/dropped_names.h"
#include "store/chunk_store.h"

namespace braidfs::server {

// For so long after a client's request others make room for the next one.
inline constexpr auto kClientsPresent = std::chrono::milliseconds(250);

// When a client last asked for something, or got it. To some milliseconds, so that lanes seldom
// write to it.
class ClientTime {
 public:
  void is(Clock::time_point now) noexcept {
    const int64_t now_ms = ms_of(now);
    if (now_ms - at_ms_.load(std::memory_order_relaxed) >= kGrainMs)
      at_ms_.store(now_ms, std::memory_order_relaxed);
  }
  bool was_within(Clock::duration span, Clock::time_point now) const noexcept {
    return ms_of(now) - at_ms_.load(std::memory_order_relaxed) <
           std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
  }

 private:
  static constexpr int64_t kGrainMs = 8;
  static int64_t ms_of(Clock::time_point when) noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  }
  std::atomic<int64_t> at_ms_{INT64_MIN / 2};
};

class TargetTable {
 public:
  static constexpr size_t kTargetsMax = 64;

  struct Entry {
    std::atomic<uint32_t> target{0};  // 0: the metaserver has not assigned an id yet
    std::unique_ptr<store::ChunkStore> store;
    DroppedNames dropped;
    ClientTime clients;
  };

  size_t count() const { return count_.load(std::memory_order_acquire); }
  Entry& at(size_t index) { return entries_[index]; }

  // The entry that add() will publish: the store's callbacks may refer to it while the store opens.
  Entry* next() { return count() < kTargetsMax ? &entries_[count()] : nullptr; }
  void add(std::unique_ptr<store::ChunkStore> store, uint32_t target) {
    Entry& entry = entries_[count()];
    entry.store = std::move(store);
    entry.target.store(target, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_release);
  }

  // nullptr: there is no such target here.
  Entry* entry_of(uint32_t target) {
    const size_t index = index_of(target);
    return index == kTargetsMax ? nullptr : &entries_[index];
  }
  const Entry* entry_of(uint32_t target) const {
    const size_t index = index_of(target);
    return index == kTargetsMax ? nullptr : &entries_[index];
  }
  store::ChunkStore* find(uint32_t target) const {
    const size_t index = index_of(target);
    return index == kTargetsMax ? nullptr : entries_[index].store.get();
  }

 private:
  size_t index_of(uint32_t target) const {
    if (target == 0) return kTargetsMax;
    const size_t open = count();
    for (size_t index = 0; index < open; ++index) {
      if (entries_[index].target.load(std::memory_order_acquire) == target) return index;
    }
    return kTargetsMax;
  }

  std::array<Entry, kTargetsMax> entries_;
  std::atomic<size_t> count_{0};
};

}  // namespace braidfs::server
