// How lanes use the local cache (cache/cache.h): they answer READs from it by io_uring in their own
// loops, and lend it the bytes that targets sent.
//
// An extent is named by inode and stamp (Inode::stamp). The caller has seen under the inode's mutex
// that DATA is leased, so bytes with that stamp are what a target would answer. Invariant: a READ
// is answered from here only if all of it is there and its checksums are right; bytes with a wrong
// checksum are forgotten, and the targets are asked. Threads: read() on the lane; keep() ANY LANE;
// stop() when the lanes have ended.
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

  // It is made before the loops run.
  LocalCache(std::unique_ptr<cache::Cache> cache, const std::vector<net::EventLoop*>& loops);
  LocalCache(const LocalCache&) = delete;
  LocalCache& operator=(const LocalCache&) = delete;

  // Reads the extent into `place` and calls `done`. False: the extent is not there, and `done` is
  // not called. `place` begins at a page and has room for whole blocks.
  bool read(uint32_t lane, const CachedExtent& extent, std::span<std::byte> place, Done done);
  // Lends these bytes, which targets sent. The buffer comes back when they are written.
  void keep(const CachedExtent& extent, Buffer buffer);
  void stop();

  cache::Cache& cache() noexcept { return *cache_; }
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all);

 private:
  static constexpr size_t kHeadsMax = 512;  // in use by one lane
  struct Fetch;
  struct LaneEnd {
    explicit LaneEnd(net::EventLoop& loop) : heads(cache::kHeadBytes, kHeadsMax, 64), uring(loop) {}
    net::BufferPool heads;  // outlives the requests in the ring
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
