// The in-memory state of one object and of its groups of blocks.
//
// Invariant behind crash safety: a block's home (its place in the live slot) is written only while
// `occupied` is clear. `occupied` is set when answered or committed bytes lie there, and is cleared
// only when a committed log entry says that they are gone. So bytes that a reader or a recovery may
// want are never overwritten in place (rule 21); everything else goes to the log or to the other
// slot.
//
// Threads: ANY THREAD, guarded by Object::mu. Lock order: Object::sync_mu, Object::mu, then the
// leaves (the mutexes of the object table and of the log).
#pragma once
#include <atomic>
#include <bitset>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "store/layout.h"
#include "store/range_lock.h"

namespace braidfs::store {

using braidfs::Clock;

struct alignas(kBlockSize) Block {
  std::array<std::byte, kBlockSize> bytes;
};

// The bytes of one block of a REDO entry that are not at their home yet. `held` counts them for the
// budget.
struct RedoBlock {
  explicit RedoBlock(std::atomic<uint64_t>& counter) noexcept : held(counter) {
    held.fetch_add(kBlockSize, std::memory_order_relaxed);
  }
  RedoBlock(const RedoBlock&) = delete;
  RedoBlock& operator=(const RedoBlock&) = delete;
  ~RedoBlock() { held.fetch_sub(kBlockSize, std::memory_order_relaxed); }
  std::atomic<uint64_t>& held;
  std::array<std::byte, kBlockSize> bytes;
};
using RedoPointer = std::shared_ptr<const RedoBlock>;

struct Group {
  explicit Group(std::atomic<uint64_t>& counter) noexcept : counted(counter) { ++counted; }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { --counted; }

  bool hole(uint32_t block) const noexcept { return versions[block] == 0; }
  void set(uint32_t block, uint64_t sum) noexcept {
    sums[block] = sum;
    if (++versions[block] == 0) versions[block] = 1;
  }
  void clear(uint32_t block) {
    sums[block] = 0;
    versions[block] = 0;
    redo.erase(block);
  }

  // The map of this group's children; made when it is first needed.
  ChildMap& map() {
    if (!children) children = std::make_unique<ChildMap>();
    return *children;
  }

  std::atomic<uint64_t>& counted;
  std::unique_ptr<ChildMap> children;  // null: no child has a page
  // Used by recovery: the map as of the last checkpoint that finished.
  std::unique_ptr<ChildMap> finished;
  std::array<uint64_t, kGroupBlocks> sums{};
  std::array<uint32_t, kGroupBlocks> versions{};
  std::bitset<kGroupBlocks> occupied;
  std::map<uint32_t, RedoPointer> redo;
  std::bitset<kGroupBlocks> read;  // blocks that large reads have read lately
  Clock::time_point read_at{};     // time of the last of these reads
  uint64_t page_sequence = 0;      // applied_sequence of the page on disk
  uint64_t switch_sequence = 0;    // of the entry that left the other slot
  uint32_t other_blocks = 0;       // blocks with device space in the other slot
  uint32_t generation = 0;         // of the page on disk; 0: there is none
  uint8_t place = 1;               // where that page is; the next page goes to the other place
  uint8_t slot = 0;                // the live slot
  bool other_busy = false;         // the other slot holds blocks of the last committed state
  bool other_in_flight = false;    // a write to the other slot has begun
  bool dirty = false;              // changed since its page was written
  bool damaged = false;            // its page cannot be trusted
};

struct Punched {
  uint64_t first = 0;  // blocks
  uint64_t end = 0;
  uint64_t sequence = 0;
};

struct Object {
  explicit Object(ObjectId identity) noexcept : id(identity) {}
  bool unsynced() const noexcept { return last_sequence > committed_sequence; }

  const ObjectId id;
  std::mutex mu;
  std::mutex sync_mu;  // one sync at a time; the next one may find its work done
  RangeLock range;
  std::shared_ptr<File> file;
  std::shared_ptr<File> direct;
  bool loaded = false;
  bool exists = false;  // the object exists
  // A file exists, but nothing of its object was ever synced, so the object does not exist.
  bool leftover = false;
  bool mapped = false;  // pages say which other pages exist (ChildMap)
  // The file's mark, as far as known: how many places of group 0 have had a page.
  uint8_t mark = 0;
  bool removed = false;  // by DELETE; this instance answers kNoObject for ever
  bool damaged = false;  // group 0's page cannot be trusted: length and epoch are unknown
  bool broken = false;   // fdatasync failed: answered bytes may be lost
  bool dirty = false;    // in the table's list of dirty objects
  bool bytes_unsynced = false;
  bool name_unsynced = false;
  uint32_t epoch = 0;
  uint64_t length = 0;
  // Until then, large reads of several readers are expected.
  Clock::time_point read_together_until{};
  uint64_t last_sequence = 0;
  uint64_t committed_sequence = 0;
  uint64_t floor_sequence = 0;  // recovery: pages up to it belong to a deleted object
  Clock::time_point unsynced_since{};
  // group 0 stays while the object is loaded
  std::unordered_map<uint32_t, std::shared_ptr<Group>> groups;
  std::vector<Punched> punched;  // not committed yet, or not released yet
  // Recovery: TRUNCATEs and PUNCHes that pages may not include yet.
  std::vector<Punched> cuts;
  std::vector<uint32_t> switched;  // groups whose other slot becomes free with a commit
};

using ObjectPointer = std::shared_ptr<Object>;

}  // namespace braidfs::store
