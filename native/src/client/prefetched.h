// What is read before anybody asks for it: announced files (announced.h), sequential prefetch
// (streams.h), and files that servers are told of (fetch_ahead.h, whole_reads.h); and the local
// cache, if there is one. Invariant: the tables keep their own budgets; the local cache does not
// come or go after the first request. Threads: ANY THREAD. Not here: the operations that fetch
// (announced_files.h, early_fetch.h, fetching.h, opened_fetch.h).
#pragma once
#include <atomic>

#include "client/announced.h"
#include "client/fetch_ahead.h"
#include "client/local_cache.h"
#include "client/streams.h"
#include "client/whole_reads.h"

namespace braidfs::client {

class Prefetched {
 public:
  Announced& announced() noexcept { return announced_; }
  Streams& streams() noexcept { return streams_; }
  FetchAhead& fetch_ahead() noexcept { return fetch_ahead_; }
  WholeReads& whole_reads() noexcept { return whole_reads_; }
  // A timer runs on some lane that looks what of them has to go.
  std::atomic<bool>& announced_expire() noexcept { return announced_expire_; }
  std::atomic<bool>& streams_expire() noexcept { return streams_expire_; }

  void local_cache(LocalCache* cache) noexcept { local_cache_ = cache; }
  LocalCache* local_cache() noexcept { return local_cache_; }  // nullptr: there is none

  // The machine's memory is short.
  void let_go() {
    announced_.let_go();
    streams_.let_go();
  }

 private:
  Announced announced_;
  FetchAhead fetch_ahead_;
  Streams streams_;
  WholeReads whole_reads_;
  LocalCache* local_cache_ = nullptr;
  std::atomic<bool> announced_expire_ = false;
  std::atomic<bool> streams_expire_ = false;
};

}  // namespace braidfs::client
