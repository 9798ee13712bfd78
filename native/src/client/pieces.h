// The acting half of the piece table: sends pieces, resumes operations, evicts held bytes.
// LANE ONLY; none of these may be called with an inode's mutex held.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "client/inode.h"
#include "client/lane.h"

namespace braidfs::client {

// Does what became possible.
void perform(Lane& lane, const InodePtr& inode, Settled& settled);

// Sends the partial pieces that were first written before `before`. False: look again later.
bool send_aged(Lane& lane, const InodePtr& inode, Clock::time_point now);
// Sends all partial pieces.
void send_partial(Lane& lane, const InodePtr& inode);

// The held pieces of all inodes, oldest first, so that the budget is taken from the oldest.
// ANY LANE, guarded by mu_.
class HeldQueue {
 public:
  void push(const InodePtr& inode, const PiecePtr& piece);
  // Drops the oldest pieces while the budget is exceeded.
  void evict(Core& core);

 private:
  static constexpr size_t kSweepAt = 4096;
  using Entry = std::pair<std::weak_ptr<Inode>, std::weak_ptr<Piece>>;

  std::mutex mu_;
  std::deque<Entry> queue_;  // guarded by mu_; entries of pieces that are gone are swept
  size_t sweep_at_ = kSweepAt;
};

}  // namespace braidfs::client
