// The policy for announced reads: a program said that it will read these files in this order
// (docs/decisions/0038-announced-reads.md), and small ones are fetched whole before they are asked
// for.
//
// At most kUnderWayMax files are under way at once, and fetched files take at most the far part of
// the share; then fetching waits for READs. A file leaves the table when it was read (table.h),
// when it is closed unread, and when files far behind it in the order have been read or closed.
// Invariant: order_ has each file that is in the table for this policy once, with the place that
// places_ has. Threads: as policy.h says; has_wanted() ANY THREAD. Not here: opening the files
// (prefetching.h), which files were announced for whom (fsclient/fs/announced.py).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/prefetch/policy.h"

namespace braidfs::client::prefetch {

class AnnouncedOrder final : public Policy {
 public:
  static constexpr size_t kWantedMax = 1u << 20;
  static constexpr size_t kUnderWayMax = 64;
  static constexpr size_t kBatch = 16;  // files that begin together: so do their requests
  static constexpr uint32_t kReserve = 256u << 10;  // for a file whose size is not known yet
  static constexpr size_t kBehindMax = 1024;        // places in the order

  explicit AnnouncedOrder(Share& share) : share_(share) {}

  // Appends these files to the wanted ones, or replaces them. Returns for how many there was room.
  size_t announce(std::span<const uint64_t> inos, bool replaces);
  bool has_wanted() const noexcept { return is_waiting_.load(std::memory_order_relaxed); }
  // Takes at most kBatch files that are to be fetched now; they are under way in the table from
  // then on.
  std::vector<uint64_t> take(Table& table, Clock::time_point now);
  void let_go();  // forgets the wanted files

  bool watches(const CachedExtent& extent, For /*whom*/) const noexcept override {
    return extent.file_size < kLargeFileMin && share_.any();
  }
  bool any() const noexcept override { return share_.any(); }
  void given(uint64_t ino, Table& table) override;
  void closed(uint64_t ino, bool is_last, Table& table) override;
  bool expire(Table& table, Clock::time_point now) override;

 private:
  void drop_behind(uint64_t turn, Table& table);
  void note_waiting() noexcept { is_waiting_.store(!wanted_.empty(), std::memory_order_relaxed); }

  Share& share_;
  std::deque<uint64_t> wanted_{};
  std::atomic<bool> is_waiting_{false};                // wanted_ is not empty
  std::unordered_map<uint64_t, uint64_t> places_{};    // place in the order, by inode number
  std::deque<std::pair<uint64_t, uint64_t>> order_{};  // place and inode number
  uint64_t next_place_ = 0;
};

}  // namespace braidfs::client::prefetch
