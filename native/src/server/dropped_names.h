// The names of a target's objects that no client may use any more: tombstones.
//
// A name is dropped when its layout names that replica no longer, or it belonged to a replica that
// was deleted: a copy that is late must not make its object again. Dropped names stay until the
// process ends (the metaserver says them again to the next one), or until their objects were
// deleted and kDeletedMax others after them.
//
// Of a target that has left the cluster all names are dropped.
//
// While there is none, has() costs one load. Threads: ANY THREAD, guarded by mu_.
#pragma once
#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>

#include "braidfs/frame.h"
#include "store/object_table.h"

namespace braidfs::server {

class DroppedNames {
 public:
  static constexpr size_t kNamesMax = 1u << 22;
  static constexpr size_t kDeletedMax = 1u << 17;

  bool has(const store::ObjectId& name) const {
    if (count_.load(std::memory_order_acquire) == 0) return false;
    const std::shared_lock lock(mu_);
    return are_all_ || names_.contains(name);
  }

  // False: there are too many, and some of these were not taken.
  bool drop(std::span<const store::ObjectId> names) {
    const std::scoped_lock lock(mu_);
    if (are_all_) return true;
    bool taken = true;
    for (const store::ObjectId& name : names) {
      taken = names_.contains(name) || names_.size() < kNamesMax;
      if (!taken) break;
      names_.try_emplace(name, false);
    }
    count_.store(names_.size(), std::memory_order_release);
    return taken;
  }

  // Every name is dropped from now on.
  void drop_all() {
    const std::scoped_lock lock(mu_);
    are_all_ = true;
    count_.store(names_.size() + 1, std::memory_order_release);
  }

  // Called before the object of this name is deleted. A name of generation 0 that was not dropped
  // needs no tombstone: its file is gone, and the file id is never used again.
  void deleted(const store::ObjectId& name) {
    if (generation_of(name.stripe_index) == 0 && count_.load(std::memory_order_acquire) == 0)
      return;
    const std::scoped_lock lock(mu_);
    if (are_all_) return;
    const auto found = names_.find(name);
    if (found == names_.end() && generation_of(name.stripe_index) == 0) return;
    if (found != names_.end() && found->second) return;
    names_[name] = true;
    deleted_order_.push_back(name);
    if (deleted_order_.size() > kDeletedMax) {
      names_.erase(deleted_order_.front());
      deleted_order_.pop_front();
    }
    count_.store(names_.size(), std::memory_order_release);
  }

  size_t count() const { return count_.load(std::memory_order_acquire); }

 private:
  std::atomic<size_t> count_{0};  // of names_, and one more when all names are dropped
  mutable std::shared_mutex mu_;
  // The value says whether the object was deleted.
  std::unordered_map<store::ObjectId, bool, store::ObjectIdHash> names_;
  std::deque<store::ObjectId> deleted_order_;
  bool are_all_ = false;
};

}  // namespace braidfs::server
