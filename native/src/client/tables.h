// The inodes and handles that native knows, by number.
//
// The tables are sharded, so that lanes do not contend for one lock. Invariant: they have at most
// kInodesMax and kHandlesMax entries; Python cannot add more. Threads: ANY THREAD. Not here: when
// inodes and handles come and go (inodes.h, open_files.h).
#pragma once
#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "client/inode.h"

namespace braidfs::client {

// One open of a file. error_seen is guarded by the inode's mutex.
struct Handle {
  uint64_t fh = 0;
  InodePtr inode;
  uint32_t open_flags = 0;
  bool direct = false;                      // FOPEN_DIRECT_IO: only its mappings use the page cache
  LocalOpen local_open = LocalOpen::kNone;  // why a lane opened it; kNone: Python did
  uint64_t error_seen = 0;
  uint32_t noted = 0;  // its slot in OpenRecord

  // Lanes opened it, and Python knows only that there may be such handles.
  bool is_local() const noexcept {
    return local_open == LocalOpen::kKept || local_open == LocalOpen::kGranted;
  }
  // The kernel bypasses its pages for reads and writes: every O_DIRECT handle is FOPEN_DIRECT_IO
  // (open_reply.h).
  bool goes_past_pages() const noexcept { return direct || (open_flags & O_DIRECT) != 0; }
  bool writes_past_pages() const noexcept {
    return goes_past_pages() && (open_flags & O_ACCMODE) != O_RDONLY;
  }
};
using HandlePtr = std::shared_ptr<Handle>;

// A bounded, sharded map from a number to a shared object.
template <typename T>
class ShardedTable {
 public:
  explicit ShardedTable(size_t count_max) : count_max_(count_max) {}

  std::shared_ptr<T> find(uint64_t number) {
    Shard& in = shard(number);
    const std::scoped_lock lock(in.mu);
    const auto found = in.entries.find(number);
    return found == in.entries.end() ? nullptr : found->second;
  }
  // Returns the entry of that number, which is made if there is none. nullptr: the table is full.
  template <typename Make>
  std::shared_ptr<T> find_or(uint64_t number, Make make) {
    Shard& in = shard(number);
    const std::scoped_lock lock(in.mu);
    const auto found = in.entries.find(number);
    if (found != in.entries.end()) return found->second;
    if (count_ >= count_max_) return nullptr;
    ++count_;
    return in.entries.emplace(number, make()).first->second;
  }
  std::shared_ptr<T> take(uint64_t number) {
    return take_if(number, [](const T&) { return true; });
  }
  // Removes the entry and returns it if `may_go` allows that; `may_go` is called under the shard's
  // lock.
  template <typename MayGo>
  std::shared_ptr<T> take_if(uint64_t number, MayGo may_go) {
    Shard& in = shard(number);
    const std::scoped_lock lock(in.mu);
    const auto found = in.entries.find(number);
    if (found == in.entries.end() || !may_go(*found->second)) return nullptr;
    std::shared_ptr<T> taken = std::move(found->second);
    in.entries.erase(found);
    --count_;
    return taken;
  }
  std::vector<std::shared_ptr<T>> all() {
    std::vector<std::shared_ptr<T>> found;
    for (Shard& in : shards_) {
      const std::scoped_lock lock(in.mu);
      for (const auto& [number, entry] : in.entries) found.push_back(entry);
    }
    return found;
  }
  size_t count() const noexcept { return count_; }

 private:
  static constexpr size_t kShardCount = 32;
  struct alignas(64) Shard {
    std::mutex mu;
    std::unordered_map<uint64_t, std::shared_ptr<T>> entries;  // guarded by mu
  };
  Shard& shard(uint64_t number) noexcept { return shards_[number % kShardCount]; }

  const size_t count_max_;
  std::atomic<size_t> count_ = 0;
  std::array<Shard, kShardCount> shards_;
};

inline constexpr size_t kInodesMax = 1u << 20;
inline constexpr size_t kHandlesMax = 1u << 20;
using InodeTable = ShardedTable<Inode>;
using HandleTable = ShardedTable<Handle>;

}  // namespace braidfs::client
