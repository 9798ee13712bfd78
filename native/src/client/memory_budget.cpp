#include "client/memory_budget.h"

#include <algorithm>

#include "client/inodes.h"

namespace braidfs::client {

void MemoryBudget::hold(const InodePtr& inode, const PiecePtr& piece) {
  const std::scoped_lock lock(mu_);
  held_.emplace_back(inode, piece);
  if (held_.size() < sweep_at_) return;
  std::erase_if(held_, [](const Held& entry) { return entry.second.expired(); });
  sweep_at_ = std::max(kSweepAt, held_.size() * 2);
}

bool MemoryBudget::take_oldest(Held& oldest) {
  const std::scoped_lock lock(mu_);
  if (held_.empty()) return false;
  oldest = std::move(held_.front());
  held_.pop_front();
  return true;
}

void MemoryBudget::evict(Inodes& inodes) {
  Held oldest;
  while (memory_.held_over() && take_oldest(oldest)) {
    const InodePtr inode = oldest.first.lock();
    const PiecePtr piece = oldest.second.lock();
    if (!inode || !piece) continue;
    Actions actions;
    {
      const std::scoped_lock lock(inode->mu());
      inode->pieces().drop_held(piece, actions);
    }
    inodes.idle(inode);
  }
}

}  // namespace braidfs::client
