// What all lanes share. ANY THREAD: each member guards itself. Built and owned by ChunkServer,
// which lets it outlive the lanes and the workers.
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

inline constexpr size_t kReadThreads = 32;  // as many first reads of objects wait for the device
inline constexpr size_t kWriteThreads = 16;
inline constexpr size_t kBlockingThreads = 16;
inline constexpr size_t kWorkerQueueMax = 65536;

struct Services {
  explicit Services(uint64_t fetched_bytes_max) : fetcher(targets, fetched_bytes_max) {}

  CapabilityKey capability_key;
  SessionTable sessions;
  EventQueue events;
  TargetTable targets;
  bool uring = false;  // else reads and writes that would block go to the workers

  // Closes every connection of the session on every lane; when_ended() of `sessions` tells the end.
  std::function<void(uint64_t session)> close_session;

  // One pool each, so that writes that wait for room in the log hold up no read and no SYNC.
  WorkerPool readers{"braid-read", kReadThreads, kWorkerQueueMax};
  WorkerPool writers{"braid-write", kWriteThreads, kWorkerQueueMax};
  WorkerPool blocking{"braid-block", kBlockingThreads, kWorkerQueueMax};
  Fetcher fetcher;
};

}  // namespace braidfs::server
