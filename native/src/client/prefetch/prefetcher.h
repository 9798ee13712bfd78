// The prefetcher: the one place that lanes and operations use for bytes that are read before
// anybody asks for them.
//
// It tells the policies what programs do, and puts what they want where it goes:
// - client memory (table.h): extents of large files, announced files;
// - the kernel's pages (KernelReplies::store_pages): small files, with their OPEN;
// - the page caches of storage servers (server_caches.h): small files of granted directories.
// One budget bounds the table, one count says how much is under way, and one timer removes what
// nobody reads. A new policy is a class (policy.h) and a line in the constructor.
//
// Invariant: bytes are given only to a READ whose caller has seen, under the inode's mutex, that
// DATA is leased and that the stamp is the one asked for. Threads: ANY THREAD; the table and the
// policies are guarded by mu_, a leaf. A READ that no policy watches, and an OPEN, take no lock.
// Not here: who fetches (prefetching.h, early_fetch.h, opened_fetch.h, server_fetch.h), the local
// cache (local_cache.h).
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/prefetch/announced_order.h"
#include "client/prefetch/page_history.h"
#include "client/prefetch/sequential.h"
#include "client/prefetch/server_caches.h"
#include "client/prefetch/table.h"
#include "client/prefetch/whole_small_files.h"

namespace braidfs::client::prefetch {

class Prefetcher {
 public:
  static constexpr std::chrono::seconds kExpireEvery{5};

  Prefetcher() = default;
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // At most so many bytes may lie in client memory, under way or unread. 0, the initial value:
  // nothing is fetched to any place. fills_pages: small files may go into the kernel's pages.
  void limit(uint64_t bytes_max, bool fills_pages) noexcept;
  bool is_on() const noexcept { return table_.limit() != 0; }
  // Pauses or resumes: while it is paused, no prefetch begins.
  void pause(bool is_paused) noexcept { is_paused_ = is_paused; }
  size_t under_way() const;
  uint64_t bytes() const;
  // The machine's memory is short: all fetched bytes and wanted files are dropped.
  void let_go();
  // Returns true to one caller, who then calls expire() every kExpireEvery until that returns
  // false.
  bool takes_timer() noexcept { return !has_timer_.exchange(true); }
  // Drops entries that nobody reads. False: nothing is left, and the timer may end.
  bool expire(Clock::time_point now);
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

  // ---- READs ----
  bool watches(const CachedExtent& extent, For whom) const noexcept;
  struct Reading {
    CachedExtent extent{};
    For whom = For::kProgram;
    bool only_looks = false;  // nothing is begun: the same READ asks again, or this is an OPEN
    Clock::time_point now{};
  };
  // Reads an extent that is watched. kYes: `parts` are its bytes. kWait: `reader` proceeds when
  // more bytes have come. In each case the caller must have `wanted` fetched: each of these extents
  // is under way until fetched() or missed().
  Found read(const Reading& reading, Parts& parts, const Waiter& reader, Extents& wanted);
  // Both return the operations that waited, which look again.
  Waiters fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now);
  Waiters missed(uint64_t ino, uint64_t offset);
  // Whether closed() must be called when a handle of this file is closed. It takes no lock while
  // nothing is prefetched.
  bool knows(uint64_t ino) const;
  void closed(uint64_t ino, bool is_last);

  // ---- announced files ----
  size_t announce(std::span<const uint64_t> inos, bool replaces);
  bool has_announced() const noexcept { return announced_order_.has_wanted(); }
  // The files that are to be fetched now: each is under way until fetched() or missed() for its
  // beginning.
  std::vector<uint64_t> take_announced(Clock::time_point now);

  // ---- whole small files ----
  WholeSmallFiles& whole_small_files() noexcept { return whole_small_files_; }
  ServerCaches& server_caches() noexcept { return server_caches_; }

 private:
  static constexpr Share::Terms kReaders{
      .name = "stream", .lifetime = std::chrono::seconds(10), .far_eighths = 1};
  static constexpr Share::Terms kAnnounced{
      .name = "announced", .lifetime = std::chrono::seconds(60), .far_eighths = 6};

  std::atomic<bool> is_paused_{false};
  std::atomic<bool> has_timer_{false};
  WholeSmallFiles whole_small_files_;
  ServerCaches server_caches_;

  mutable std::mutex mu_;
  Table table_;
  Share& readers_ = table_.share(kReaders);
  Sequential sequential_{readers_};
  PageHistory page_history_{readers_};
  AnnouncedOrder announced_order_{table_.share(kAnnounced)};
  const std::array<Policy*, 3> policies_{&sequential_, &page_history_, &announced_order_};
};

}  // namespace braidfs::client::prefetch
