// The inodes on which this client has, or had, locks: lanes alone cannot close their files, because
// a close also drops the locks of its owner (rule 5).
//
// Python adds an inode at its first lock and removes it when its last handle is closed. In between,
// opens get no FOPEN_NOFLUSH, and the answer to a FLUSH, once the written bytes are where they
// belong, is held back and goes to Python as a CALL; Python drops the locks of the lock owner and
// answers. So a lock is free only after others can read the bytes that were written under it. ANY
// THREAD. An atomic counts the inodes, so that without locks no mutex is locked.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "fuse/request.h"

namespace braidfs::fuse {

class ClosingTable {
 public:
  void put(uint64_t nodeid) {
    const std::scoped_lock lock(mu_);
    inodes_.insert(nodeid);
    count_ = inodes_.size() + waiting_.size();
  }
  void drop(uint64_t nodeid) {
    const std::scoped_lock lock(mu_);
    inodes_.erase(nodeid);
    count_ = inodes_.size() + waiting_.size();
  }
  bool holds(uint64_t nodeid) const {
    if (count_.load(std::memory_order_acquire) == 0) return false;
    const std::scoped_lock lock(mu_);
    return inodes_.contains(nodeid);
  }
  // Called before the DataHandler gets the FLUSH: its answer is to be held back.
  void expect(const FlushRequest& request) {
    const std::scoped_lock lock(mu_);
    waiting_.emplace(request.head.unique, request);
    count_ = inodes_.size() + waiting_.size();
  }
  // The FLUSH with this unique is answered: returns it if its answer is to be held back.
  std::optional<FlushRequest> take(uint64_t unique) {
    if (count_.load(std::memory_order_acquire) == 0) return std::nullopt;
    const std::scoped_lock lock(mu_);
    const auto found = waiting_.find(unique);
    if (found == waiting_.end()) return std::nullopt;
    const FlushRequest request = found->second;
    waiting_.erase(found);
    count_ = inodes_.size() + waiting_.size();
    return request;
  }

 private:
  mutable std::mutex mu_;
  std::atomic<size_t> count_{0};
  std::unordered_set<uint64_t> inodes_;                 // guarded by mu_
  std::unordered_map<uint64_t, FlushRequest> waiting_;  // guarded by mu_: by unique
};

}  // namespace braidfs::fuse
