// A plan shows a policy the table when a READ has come, and takes what else the policy wants of
// that file. What is wanted first is fetched first.
//
// Invariant: the extents that want() took are under way in the table. Threads: none of its own; it
// lives while the Prefetcher's mutex is held. Not here: whose bytes they are (table.h).
#pragma once
#include <cstdint>

#include "client/cached_extent.h"
#include "client/prefetch/table.h"

namespace braidfs::client::prefetch {

class Plan {
 public:
  // `extents` may be nullptr: then nothing may be begun now, and want() refuses everything.
  Plan(Table& table, const CachedExtent& extent, Extents* extents, Clock::time_point now)
      : table_(table), extent_(extent), extents_(extents), now_(now) {}

  const CachedExtent& extent() const noexcept { return extent_; }  // of the READ
  Clock::time_point now() const noexcept { return now_; }

  // Where the first entry begins and ends that ends behind that offset, fetched or under way; the
  // largest offset if there is none.
  Table::Cover next(uint64_t offset) const {
    return table_.next(extent_.ino, offset).value_or(Table::Cover{~uint64_t{0}, ~uint64_t{0}});
  }
  // Fetches those of these bytes that are neither here nor under way; `given` of them will not be
  // asked for. False: there is no room for all of them.
  bool want(Share& share, uint64_t begin, uint64_t end, Priority priority, uint32_t given = 0) {
    return extents_ != nullptr &&
           table_.begin(share, {extent_.ino, begin, end, priority, given}, *extents_, now_);
  }

 private:
  Table& table_;
  const CachedExtent extent_;
  Extents* const extents_;
  const Clock::time_point now_;
};

}  // namespace braidfs::client::prefetch
