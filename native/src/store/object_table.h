// The table of objects in memory: found by id; clean ones are evicted, the least recently used
// first.
//
// Bounds: objects, groups (record pages) and open files, each counted over the whole table. A dirty
// object, or one that somebody holds, stays; checkpoints bound their number. A dirty object whose
// files were closed is set apart until it is used again, so that the search for room does not meet
// it again and again. The table also has the list of dirty objects, and the ids of objects deleted
// lately: late writes must not bring those back.
//
// Threads: ANY THREAD, guarded by mu_. It takes an Object's mutex only with try_lock.
#pragma once
#include <deque>
#include <list>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "store/object.h"

namespace braidfs::store {

struct ObjectIdHash {
  size_t operator()(const ObjectId& id) const noexcept {
    uint64_t x = id.file_id * 0x9e3779b97f4a7c15u + id.stripe_index;
    x ^= x >> 32;
    return static_cast<size_t>(x * 0xd6e8feb86659fd93u);
  }
};

struct TableLimits {
  uint32_t objects_max = 0;
  uint32_t groups_max = 0;
  uint32_t files_max = 0;
};

class ObjectTable {
 public:
  explicit ObjectTable(TableLimits limits) noexcept : limits_(limits) {}

  // Sets the bound for open files. Files beyond it are closed as others are opened.
  void limit_files(uint32_t files_max) {
    const std::lock_guard guard(mu_);
    limits_.files_max = files_max;
  }

  ObjectPointer get(ObjectId id);
  // Evicts down to the bounds. The objects in `used` were used in a batch, without get(); their
  // pointers are released.
  void trim(std::span<ObjectPointer> used);
  // Closes unused files, the least recently used first, because descriptors are short. False: there
  // are none. The caller may hold the mutex of an object to which it also holds a pointer.
  bool close_files();
  void erase(const ObjectPointer& object);  // after DELETE; remembers the id
  bool deleted_lately(ObjectId id) const;

  void add_dirty(const ObjectPointer& object);  // the caller holds its mutex
  std::vector<ObjectPointer> dirty() const;
  std::vector<ObjectPointer> take_dirty();
  size_t dirty_count() const;

  std::atomic<uint64_t>& group_counter() noexcept { return groups_; }
  std::atomic<uint64_t>& file_counter() noexcept { return files_; }
  uint64_t object_count() const;

 private:
  struct Slot {
    ObjectPointer object;
    std::list<ObjectId>::iterator position;
    bool is_apart = false;  // its position is in apart_, not in recent_
  };
  enum class Outcome : uint8_t { kBusy, kMayGo, kStripped };
  bool crowded() const noexcept;
  void use(Slot& slot);
  bool is_unused(const Slot& slot, const std::unordered_set<const Object*>& dirty) const;
  void evict_some();
  static Outcome try_evict(const Slot& slot);

  mutable std::mutex mu_;
  TableLimits limits_;
  std::atomic<uint64_t> groups_{0};
  std::atomic<uint64_t> files_{0};
  std::unordered_map<ObjectId, Slot, ObjectIdHash> objects_;
  std::list<ObjectId> recent_;  // front: used last
  std::list<ObjectId> apart_;   // dirty, without open files when they were last checked
  std::vector<ObjectPointer> dirty_;
  std::deque<ObjectId> deleted_order_;
  std::unordered_set<ObjectId, ObjectIdHash> deleted_;
};

}  // namespace braidfs::store
