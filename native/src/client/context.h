// What operations and lanes may use of the client: its parts, each of which is a class of its own.
//
// | part | what it has |
// |---|---|
// | kernel() | answers to the kernel, EOF pages, invalidation of pages |
// | leases() | which leases on bytes are held, lease requests |
// | memory() | buffers and their budgets, held pieces, whether targets have room |
// | incarnations() | which targets lost unsynced bytes |
// | commits() | commits under way, and what is not durable |
// | waiting(), events() | requests that wait, and events for Python |
// | inodes(), open_files() | inodes and handles, opening and closing |
// | prefetcher() | what is read before anybody asks |
// | local_cache() | bytes in files of this host, if there is a local cache |
//
// Invariant: no part includes this header, and none knows lanes, operations or Core; so whoever has
// a Context can reach no more than this. Core (core.h) owns the Context and the lanes. Threads: ANY
// THREAD; each part has its own rule.
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
#include "client/missing_servers.h"
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
  // A connection that owes answers is cut when it was silent for so long, even to a PING.
  uint32_t silence_ms_max = 10'000;
  // Small writes that nobody waits for leave at a connection at intervals of so long.
  uint32_t gather_ms = 1;
  // A replica is dropped whose server was not there for so long.
  uint32_t unreached_ms_max = 4'000;
  // A replica is dropped whose server is connected, and has not answered a change for so long. The
  // return of a recalled lease may wait for that change, and must not take 30 s.
  uint32_t unanswered_ms_max = 20'000;
  // A read asks another replica if one does not answer for so long, though its server is connected.
  uint32_t read_unanswered_ms_max = 5'000;
  uint32_t sync_after_ms = 5'000;  // bytes that nobody syncs are synced after about so long
  uint32_t busy_poll_us = 0;       // a lane with few calls under way polls for at most so long
  uint64_t seed = 0;               // of the chance in reconnecting; 0: another one in each process
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
  MissingServers& missing_servers() noexcept { return missing_servers_; }
  Commits& commits() noexcept { return commits_; }
  WaitingTable& waiting() noexcept { return waiting_; }
  EventQueue& events() noexcept { return events_; }
  const EventQueue& events() const noexcept { return events_; }
  Inodes& inodes() noexcept { return inodes_; }
  OpenFiles& open_files() noexcept { return open_files_; }
  prefetch::Prefetcher& prefetcher() noexcept { return prefetcher_; }
  LocalCache* local_cache() noexcept { return local_cache_; }  // nullptr: there is none
  // It is called before the first request.
  void local_cache(LocalCache& cache) noexcept { local_cache_ = &cache; }
  Lanes& lanes() noexcept { return lanes_; }  // lanes.h; no part uses it

  bool is_stopping() const noexcept { return stopping_; }
  bool begin_stopping() noexcept { return !stopping_.exchange(true); }  // false: it had begun

 private:
  const CoreSettings settings_;
  EventQueue events_;
  MemoryBudget memory_;
  Incarnations incarnations_;
  MissingServers missing_servers_;
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
