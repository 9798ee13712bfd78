// The memory budget of the data path: the buffers and their budgets (memory.h), the held pieces in
// the order in which they are evicted, and whether targets have room.
//
// A held piece was acknowledged by its target and is not synced. When held bytes exceed their
// budget, the oldest held pieces of all inodes go first. Invariant: the queue has each held piece
// at least once; entries of pieces that are gone are swept from time to time. Threads: ANY THREAD,
// guarded by mu_, a leaf. evict() takes the mutexes of inodes, and must not be called with one
// held.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "client/inode.h"
#include "client/memory.h"
#include "fuse/request.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Inodes;

class MemoryBudget {
 public:
  MemoryBudget(const MemoryLimits& limits, uint32_t lane_count) : memory_(limits, lane_count) {}

  Memory& memory() noexcept { return memory_; }
  Buffer read(uint32_t size) { return memory_.read(size); }
  Buffer dirty(uint32_t size, bool caller_waits) { return memory_.dirty(size, caller_waits); }
  Buffer receive_buffer() { return memory_.receive_buffer(); }
  uint64_t account(Buffer::Account which) const noexcept { return memory_.account(which); }
  // Room for the bytes of further requests.
  fuse::Room room() const noexcept {
    if (!memory_.full()) return fuse::Room::kPlenty;
    return memory_.overfull() ? fuse::Room::kNone : fuse::Room::kLittle;
  }

  // The piece is held from now on.
  void hold(const InodePtr& inode, const PiecePtr& piece);
  // Drops the oldest held pieces while the budget is exceeded.
  void evict(Inodes& inodes);

  // A target had no room a moment ago. For a while writes are answered by the targets, so that
  // write(2) reports the error (rule 24).
  void no_room(Clock::time_point now) noexcept {
    scarce_until_ = (now + kScarceTime).time_since_epoch().count();
  }
  bool is_scarce(Clock::time_point now) const noexcept {
    return now.time_since_epoch().count() < scarce_until_;
  }

 private:
  static constexpr auto kScarceTime = std::chrono::seconds(5);
  static constexpr size_t kSweepAt = 4096;
  using Held = std::pair<std::weak_ptr<Inode>, std::weak_ptr<Piece>>;
  bool take_oldest(Held& oldest);

  Memory memory_;
  std::atomic<Clock::rep> scarce_until_ = 0;
  std::mutex mu_;
  std::deque<Held> held_;       // guarded by mu_; oldest first
  size_t sweep_at_ = kSweepAt;  // guarded by mu_
};

}  // namespace braidfs::client
