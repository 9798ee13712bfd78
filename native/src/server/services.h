// What all lanes share. Built and owned by ChunkServer, which keeps it until lanes and workers have
// ended.
//
// Threads: ANY THREAD; each member guards itself.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "server/capability.h"
#include "server/event_queue.h"
#include "server/fetcher.h"
#include "server/session_table.h"
#include "server/target_table.h"
#include "server/worker_pool.h"

namespace braidfs::server {

// as many first reads of objects may wait for the device
inline constexpr size_t kReadThreads = 32;
inline constexpr size_t kWriteThreads = 16;
inline constexpr size_t kBlockingThreads = 16;
inline constexpr size_t kWorkerQueueMax = 65536;

struct Services {
  Services(uint64_t fetched_bytes_max, bool threads)
      : readers("braid-read", threads ? kReadThreads : 0, kWorkerQueueMax),
        writers("braid-write", threads ? kWriteThreads : 0, kWorkerQueueMax),
        blocking("braid-block", threads ? kBlockingThreads : 0, kWorkerQueueMax),
        fetcher(targets, threads ? fetched_bytes_max : 0) {}

  CapabilityKey capability_key;
  SessionTable sessions;
  EventQueue events;
  TargetTable targets;
  bool uring = false;  // false: reads and writes that would block go to the workers

  // Closes every connection of the session on every lane; sessions.when_ended() reports the end.
  std::function<void(uint64_t session)> close_session;

  // Separate pools, so that writes waiting for room in the log delay no READ and no SYNC.
  WorkerPool readers;
  WorkerPool writers;
  WorkerPool blocking;
  Fetcher fetcher;
};

}  // namespace braidfs::server
