// A policy: from what programs do it tells what will be read next.
//
// It hears of READs and closes and says what is wanted; it fetches nothing, has no clock and no
// lock. A new one is a class of this kind and a line in Prefetcher's constructor. Policies that
// listen to something else as well have methods of their own for that (announced_order.h,
// whole_small_files.h). Threads: watches() and any() ANY THREAD, without a lock; the rest
// guarded by the Prefetcher's mutex.
#pragma once
#include <cstdint>

#include "client/cached_extent.h"
#include "client/prefetch/extents.h"
#include "client/prefetch/plan.h"

namespace braidfs::client::prefetch {

class Policy {
 public:
  // Files from this size on are the readers' policies'; smaller ones are fetched whole, or left to
  // the kernel's read-ahead.
  static constexpr uint64_t kLargeFileMin = 8u << 20;
  static constexpr uint32_t kSmallFileMax = 1u << 20;

  virtual ~Policy() = default;

  // Whether it wants to hear of this READ, or may have had its bytes fetched. READs that no policy
  // watches cost no lock.
  virtual bool watches(const CachedExtent& extent, For whom) const noexcept = 0;
  // Whether it has something of any file.
  virtual bool any() const noexcept = 0;
  // A READ that it watches has come.
  virtual void read(Plan& /*plan*/, For /*whom*/) {}
  // A READ of that file was answered from the table.
  virtual void given(uint64_t /*ino*/, Table& /*table*/) {}
  // A handle of the file was closed; is_last: nobody has it open any more.
  virtual void closed(uint64_t ino, bool is_last, Table& table) = 0;
  // Forgets what is too old. True: it still has something that will be.
  virtual bool expire(Table& table, Clock::time_point now) = 0;

 protected:
  Policy() = default;
  Policy(const Policy&) = default;
  Policy& operator=(const Policy&) = default;
};

}  // namespace braidfs::client::prefetch
