// What operations and lanes may use of the client: its parts, each a class of its own.
//
// | part | what it has |
// |---|---|
// | kernel() | answers to the kernel, EOF pages, invalidation of pages |
// | leases() | whether leases on bytes are held, lease requests |
// | memory() | buffers and their budgets, held pieces, room at the targets |
// | incarnations() | which targets lost what was not synced |
// | commits() | commits under way, and what is not durable |
// | waiting(), events() | requests that wait, and what Python is told |
// | inodes(), open_files() | inodes and handles, opening and closing |
// | prefetcher() | what is read before anybody asks |
// | local_cache() | what lies in files of this host, if there are to be any |
//
// Invariant: no part includes this header, and none knows lanes, operations or Core; so whoever has
// a Context can reach no more than this. Core (core.h) owns it, and the lanes. Threads: ANY THREAD;
// each part has its own rule.
#pragma once
#include <atomic>
#include <cstdint>

#include "client/commits.h"
#include "client/events.h"
#include "client/incarnations.h"
#include "client/inodes.h"
#include "client/kernel_replies.h"
#include "client/leases.h"
#include "client/local_cache.h"
#include "client/memory_budget.h"
#include "client/open_files.h"
#include "client/operation.h"
#include "client/prefetch/prefetcher.h"

namespace braidfs::client {

class Lanes;

struct CoreSettings {
  uint32_t lane_count = 1;
  MemoryLimits memory{};
  uint64_t dirty_bytes_per_inode_max = 64u << 20;
  uint32_t timeout_ms = 60'000;  // 0: wait for ever
  uint32_t silence_ms_max =
      10'000;  // a connection that owes answers and says nothing, not even to a PING, is cut
  uint32_t gather_ms =
      1;  // small writes that nobody waits for leave a node's connection so far apart
  uint32_t sync_after_ms = 5'000;  // what nobody syncs is synced after about so long
  uint32_t busy_poll_us = 0;  // a lane with few calls in work looks for events so long, at most
};

class Context {
 public:
  Context(const CoreSettings& settings, Lanes& lanes)
      : settings_(settings), memory_(settings.memory, settings.lane_count), lanes_(lanes) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const CoreSettings& settings() const noexcept { return settings_; }
  KernelReplies& kernel() noexcept { return kernel_; }
  Leases& leases() noexcept { return leases_; }
  MemoryBudget& memory() noexcept { return memory_; }
  const MemoryBudget& memory() const noexcept { return memory_; }
  Incarnations& incarnations() noexcept { return incarnations_; }
  Commits& commits() noexcept { return commits_; }
  WaitingTable& waiting() noexcept { return waiting_; }
  EventQueue& events() noexcept { return events_; }
  const EventQueue& events() const noexcept { return events_; }
  Inodes& inodes() noexcept { return inodes_; }
  OpenFiles& open_files() noexcept { return open_files_; }
  prefetch::Prefetcher& prefetcher() noexcept { return prefetcher_; }
  LocalCache* local_cache() noexcept { return local_cache_; }              // nullptr: there is none
  void local_cache(LocalCache& cache) noexcept { local_cache_ = &cache; }  // before any request
  Lanes& lanes() noexcept { return lanes_; }  // lanes.h; none of the parts uses it

  bool is_stopping() const noexcept { return stopping_; }
  bool begin_stopping() noexcept { return !stopping_.exchange(true); }  // false: again

 private:
  const CoreSettings settings_;
  EventQueue events_;
  MemoryBudget memory_;
  Incarnations incarnations_;
  Commits commits_;
  WaitingTable waiting_;
  Leases leases_{events_};
  KernelReplies kernel_{leases_};
  Inodes inodes_{commits_, leases_};
  OpenFiles open_files_{inodes_, commits_, leases_, events_};
  prefetch::Prefetcher prefetcher_;
  LocalCache* local_cache_ = nullptr;
  Lanes& lanes_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace braidfs::client
