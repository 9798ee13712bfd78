// Core's part for targets that lost what was not synced: what is held for them is sent again.
#include <mutex>
#include <shared_mutex>

#include "client/core.h"

namespace braidfs::client {

uint64_t Core::incarnation(uint32_t target) {
  const std::shared_lock lock(incarnations_mu_);
  const auto found = incarnations_.find(target);
  return found == incarnations_.end() ? 0 : found->second.newest;
}

uint64_t Core::settled_incarnation(uint32_t target) {
  const std::shared_lock lock(incarnations_mu_);
  const auto found = incarnations_.find(target);
  return found == incarnations_.end() ? 0 : found->second.settled;
}

// The new one is the newest before the pieces are gone over: an acknowledgement by the former one
// either comes before that, and its piece is found held, or it is not believed any more
// (pieces.cpp, conclude).
void Core::incarnation_seen(Lane& lane, uint32_t target, uint64_t seen) {
  if (settled_incarnation(target) >= seen) return;
  const std::scoped_lock one(loss_mu_);
  const uint64_t known = settled_incarnation(target);
  if (known >= seen) return;
  {
    const std::unique_lock lock(incarnations_mu_);
    incarnations_[target].newest = seen;
  }
  if (known != 0) resend_lost(lane, target, seen);
  const std::unique_lock lock(incarnations_mu_);
  incarnations_[target].settled = seen;
}

// Everything is queued again before losses_ rises, and that before any reply of the new incarnation
// is looked at: a READ of lost bytes either waits for them or sees the change (read.cpp).
void Core::resend_lost(Lane& lane, uint32_t target, uint64_t seen) {
  lane.log(LogLevel::kWarning, "target " + std::to_string(target) +
                                   " lost what was not synced; sending again what is held");
  for (const InodePtr& inode : inodes_.all()) {
    auto settled = std::make_shared<Settled>();
    {
      const std::scoped_lock lock(inode->mu());
      inode->pieces().target_lost(target, seen, *settled);
    }
    if (settled->empty()) continue;
    lane.loop().defer([&lane, inode, settled] { perform(lane, inode, *settled); });
  }
  ++losses_;
}

}  // namespace braidfs::client
