// A FUSE request that waits for something: answered exactly once, by whoever claims it first.
//
// The work of an operation may outlive its answer: an interrupted READ was answered EINTR while its
// buffer is still being received into; the operation lives (shared_ptr) until that ended. proceed()
// is called on any lane when what it waited for may have happened; it looks again.
// WaitingTable knows every unanswered operation by the kernel's unique, for INTERRUPT and abort().
// Claiming: ANY THREAD. proceed(): any lane, one at a time.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "client/call.h"
#include "fuse/request.h"

namespace braidfs::client {

class Context;

class Operation : public CallOwner, public std::enable_shared_from_this<Operation> {
 public:
  virtual void proceed(Lane& lane) = 0;

  // Of one who claimed it, for whom it is not to wait any more: true when there is another answer
  // than an error.
  virtual bool answered_early(Context& /*context*/) { return false; }

  // It changes nothing, so that it may end without having been done.
  virtual bool is_read() const noexcept { return false; }

  // True for exactly one caller, who then answers.
  bool claim() noexcept { return !answered_.exchange(true); }
  bool is_answered() const noexcept { return answered_; }
  void rearm(const fuse::RequestHead& head) noexcept {
    head_ = head;
    answered_ = false;
  }
  const fuse::RequestHead& head() const noexcept { return head_; }

 private:
  fuse::RequestHead head_{};
  std::atomic<bool> answered_ = true;
};

// Whoever waited for something looks again.
inline void proceed_all(Lane& lane, const std::vector<std::shared_ptr<Operation>>& waiters) {
  for (const auto& waiter : waiters) waiter->proceed(lane);
}

class WaitingTable {
 public:
  void put(uint64_t unique, std::shared_ptr<Operation> operation);
  void drop(uint64_t unique) noexcept;
  std::shared_ptr<Operation> find(uint64_t unique);
  std::vector<std::shared_ptr<Operation>> all();

 private:
  static constexpr size_t kShardCount = 32;
  struct Entry {
    uint64_t unique;
    std::shared_ptr<Operation> operation;
  };
  struct alignas(64) Shard {
    std::mutex mu;
    std::vector<Entry> entries;  // guarded by mu; a few at a time
  };
  // The kernel's uniques rise in steps of 2.
  Shard& shard(uint64_t unique) noexcept { return shards_[unique / 2 % kShardCount]; }

  std::array<Shard, kShardCount> shards_;
};

}  // namespace braidfs::client
