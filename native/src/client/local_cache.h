// What lanes do with the local cache (cache/cache.h): READs are answered from it by io_uring in the
// lane's own loop, and what targets answered is lent to it.
//
// An extent is named by inode and stamp (Inode::stamp): the caller looked under the inode's mutex
// that DATA is leased, so bytes of that stamp are what a target would answer. A READ is answered
// only if all of it is there; what does not check is forgotten, and asked of the targets. Threads:
// read() on the lane; keep() ANY LANE; stop() when the lanes have ended.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "client/cached_extent.h"
#include "client/memory.h"
#include "net/uring.h"

namespace braidfs::client {

class LocalCache {
 public:
  using Done = std::function<void(bool found)>;

  // Before the loops run.
  LocalCache(std::unique_ptr<cache::Cache> cache, const std::vector<net::EventLoop*>& loops);
  LocalCache(const LocalCache&) = delete;
  LocalCache& operator=(const LocalCache&) = delete;

  // False: it is not there, and `done` is not called. `place` begins on a page and has room for
  // whole blocks.
  bool read(uint32_t lane, const CachedExtent& extent, std::span<std::byte> place, Done done);
  // These bytes were read from the targets; the buffer comes back when they are written.
  void keep(const CachedExtent& extent, Buffer buffer);
  void stop();

  cache::Cache& cache() noexcept { return *cache_; }
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all);

 private:
  static constexpr size_t kHeadsMax = 512;  // of one lane, in work
  struct Fetch;
  struct LaneEnd {
    explicit LaneEnd(net::EventLoop& loop) : heads(cache::kHeadBytes, kHeadsMax, 64), uring(loop) {}
    net::BufferPool heads;  // outlives what the ring has in work
    net::Uring uring;
    bool has_uring = false;
  };

  bool find(LaneEnd& end, const CachedExtent& extent, std::span<std::byte> place, Fetch& fetch);
  void start(LaneEnd& end, const std::shared_ptr<Fetch>& fetch);
  void finish(Fetch& fetch);

  const std::unique_ptr<cache::Cache> cache_;
  std::vector<std::unique_ptr<LaneEnd>> ends_;
  std::atomic<uint64_t> hits_ = 0;
  std::atomic<uint64_t> hit_bytes_ = 0;
  std::atomic<uint64_t> misses_ = 0;
};

}  // namespace braidfs::client
