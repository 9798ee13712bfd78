// Leases on file bytes, as operations see them: whether one is held, and how Python is asked for
// one (a lease request, the ASK event; docs/INTERFACES.md, section 7).
//
// What an inode's lease is lies in Inode, under its mutex; here is until when leases count, which
// is the same for all. Until the first until() they do not count: every file is taken for
// exclusively ours. Invariant: of one inode at most one lease request is under way, and whoever
// waits for its answer is in Inode::asking. Threads: ANY THREAD; an atomic, and inodes' mutexes.
// Not here: waking those who waited (core.cpp), who holds what at the metaserver (Python).
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "client/events.h"
#include "client/inode.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Leases {
 public:
  explicit Leases(EventQueue& events) : events_(events) {}

  void until(Clock::time_point until) noexcept { until_ = until.time_since_epoch().count(); }
  bool count() const noexcept { return until_ != kDoNotCount; }
  // LOCKED inode. One of these leases is held.
  bool holds(const Inode& inode, uint32_t flags) const noexcept {
    const Clock::rep until = until_;
    if (until == kDoNotCount) return true;
    return (inode.lease & flags) != 0 && Clock::now().time_since_epoch().count() < until;
  }

  // Has Python get a lease on the inode's bytes, and its present state; the operation proceeds when
  // that was answered, or leases changed. `request` is set to the number of the lease request (see
  // Inode::Asking) whose answer is young enough for it.
  void ask(const InodePtr& inode, Inode::Waiter waiter, uint64_t& request);
  // The answer. Returns who waited for it.
  static std::vector<Inode::Waiter> answered(Inode& inode, int error);

  struct Change {
    // Reads or writes went on under the recalled lease since it changed last, and the notifier may
    // be about to drop their pages. Or the lease is gone, and written bytes are still on their way.
    bool goes_on = false;
    // The file was cut here and the metaserver has not been told: it would cut what others write.
    bool loses_cut = false;
    Actions actions{};                     // has only released pieces
    std::vector<Inode::Waiter> waiting{};  // look again
  };
  // kLease* held, and those that are recalled but not returned.
  static Change put(Inode& inode, uint32_t flags, uint32_t recalling);

  // The parts of the file that operations which wait for a lease request have to do with.
  static std::vector<std::pair<uint64_t, uint64_t>> waiting_ranges(Inode& inode);

 private:
  static constexpr Clock::rep kDoNotCount = std::numeric_limits<Clock::rep>::max();

  EventQueue& events_;
  std::atomic<Clock::rep> until_ = kDoNotCount;
};

}  // namespace braidfs::client
