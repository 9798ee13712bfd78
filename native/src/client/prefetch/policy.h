// A policy tells from what programs do which extents they will read next.
//
// It is told of READs and closes, and says which extents are wanted. It fetches nothing, and has no
// clock and no lock. A new policy is a class of this kind and a line in Prefetcher's constructor. A
// policy that is told of other things as well has methods of its own for them (announced_order.h,
// whole_small_files.h). Threads: watches() and any() ANY THREAD, without a lock; the rest is
// guarded by the Prefetcher's mutex. Not here: where the bytes go (table.h).
#pragma once
#include <cstdint>

#include "client/cached_extent.h"
#include "client/prefetch/extents.h"
#include "client/prefetch/plan.h"

namespace braidfs::client::prefetch {

class Policy {
 public:
  // Sequential and PageHistory watch files from this size on. Smaller files are fetched whole, or
  // left to the kernel's read-ahead.
  static constexpr uint64_t kLargeFileMin = 8u << 20;
  static constexpr uint32_t kSmallFileMax = 1u << 20;

  virtual ~Policy() = default;

  // Whether the policy is to be told of this READ, or may have had its bytes fetched. A READ that
  // no policy watches costs no lock.
  virtual bool watches(const CachedExtent& extent, For whom) const noexcept = 0;
  // Whether the policy has state or entries of any file.
  virtual bool any() const noexcept = 0;
  // Whether the policy has state of this file, besides entries of the table.
  virtual bool knows(uint64_t /*ino*/) const { return false; }
  // A READ that the policy watches has come.
  virtual void read(Plan& /*plan*/, For /*whom*/) {}
  // A READ of that file was answered from the table.
  virtual void given(uint64_t /*ino*/, Table& /*table*/) {}
  // A handle of the file was closed; is_last: nobody has it open any more.
  virtual void closed(uint64_t ino, bool is_last, Table& table) = 0;
  // Forgets what is too old. True: something is left to forget later.
  virtual bool expire(Table& table, Clock::time_point now) = 0;

 protected:
  Policy() = default;
  Policy(const Policy&) = default;
  Policy& operator=(const Policy&) = default;
};

}  // namespace braidfs::client::prefetch
