// The changes that lanes make by themselves in directories that are delegated to this client
// (docs/decisions/0013-delegation.md and 0014-removals.md), in the order in which they were
// answered; the metaserver does not know them yet. A birth is a new file, made from a slot that the
// metaserver gave before: an inode number with layout and capability. A removal is a name that was
// removed. A setting is new attributes of a file that only this client may write or that nobody has
// open (0024-settings.md). A move is a name that became another one of the same directory
// (0025-renames.md).
//
// Slots are in pools (docs/decisions/0013-delegation.md): those of kDefaultPool have the
// cluster's default layout, those of another pool the layout that a directory's own default says.
// A directory with extended attributes has a pool from when the metaserver said so until these are
// changed, or the directory is not delegated any more.
//
// Bounded: there are never more births than there were slots, and at most kUnreportedMax other
// changes that the metaserver has not answered. ANY THREAD, guarded by mu_.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "names/attribute_record.h"

namespace braidfs::names {

constexpr uint64_t kNoSizeLimit = ~uint64_t{0};

// layout, capability: records of docs/INTERFACES.md section 1.
struct BirthSlot {
  uint64_t ino = 0;
  std::string layout;
  std::string capability;
  uint64_t size_limit = kNoSizeLimit;  // the file may grow to this size without asking about quotas
};

// How a new file changed until its birth was taken (docs/decisions/0026-size-with-the-birth.md).
struct BirthSince {
  uint32_t changes = 0;  // how often size and time were committed
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool is_open = true;         // through the handle of its creation
  std::string inline_bytes{};  // all bytes of the file, if its record is to hold them
};

struct Birth {
  uint64_t ino = 0;
  uint64_t parent = 0;
  uint64_t fh = 0;
  int64_t time_ns = 0;  // since 1970: of the file and of the change of its directory
  uint32_t mode = 0;    // permissions, with the umask applied
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t open_flags = 0;  // O_*
  std::string name;
  std::string layout;
  BirthSince since{};
};

// A removed name of an inode that is no directory.
struct Removal {
  uint64_t ino = 0;
  uint64_t parent = 0;
  int64_t time_ns = 0;  // since 1970: of the change of the directory and of the inode
  std::string name;
  record::Record record{};  // of the inode after the removal
};

// Attributes of a regular file that were set. valid: SET_* of docs/INTERFACES.md; times since 1970.
struct Setting {
  uint64_t ino = 0;
  uint32_t valid = 0;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  int64_t atime_ns = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  int64_t written_ns = 0;   // time of the last write, if mtime is set after it; else 0
  record::Record record{};  // afterwards, without what was written but not committed
};

// A new name, in the same directory, of an inode that is no directory.
struct Move {
  uint64_t ino = 0;
  uint64_t replaced = 0;  // the inode that had the new name as its only one; 0: none
  uint64_t parent = 0;
  int64_t time_ns = 0;  // since 1970: of the change of the directory and of both inodes
  std::string name;
  std::string new_name;
  record::Record record{};           // of the inode afterwards, as in Setting
  record::Record replaced_record{};  // of the replaced inode afterwards
};

using Change = std::variant<Birth, Removal, Setting, Move>;

// The attribute record of the new file, as the metaserver will make it.
record::Record new_file_record(const Birth& birth) noexcept;

class ChangeJournal {
 public:
  static constexpr size_t kSlotsMax = 4096;  // of all pools
  static constexpr size_t kPoolsMax = 16;    // with slots
  static constexpr uint64_t kDefaultPool = 0;
  static constexpr size_t kUnreportedMax = 4096;
  static constexpr uint64_t kFirstHandle = uint64_t{1} << 62;  // Python's handles are below

  // Adds slots. False when there would be too many slots or pools.
  bool slots_put(uint64_t pool, std::vector<BirthSlot> slots);
  // The session or the metaserver is a new one, which does not know the slots.
  void slots_clear();
  // Only so many slots of the pool stay; the others are to be used for no file. Returns their inode
  // numbers.
  std::vector<uint64_t> slots_drop(uint64_t pool, size_t kept);
  size_t slots(uint64_t pool) const;

  // Files in that directory, which has exactly one extended attribute, get slots of that pool;
  // kDefaultPool: lanes make files in it as long as it has no extended attributes.
  void pool_put(uint64_t directory, uint64_t pool);

  // Lanes make no files of these users and groups: quotas may refuse them.
  void refuse(std::vector<uint32_t> uids, std::vector<uint32_t> gids);
  bool refuses(uint32_t uid, uint32_t gid) const;

  // For a directory of a tree with limits: lanes may make this many more files in it, each of which
  // may grow to that size without asking about quotas.
  void share(uint64_t directory, uint64_t files, uint64_t size_limit);
  // The directory has no share any more: its tree has no limits, or lanes make no files in it.
  void unshare(uint64_t directory);

  // A slot for a file in that directory, which has so many extended attributes; nothing if there is
  // none, or its share is used up, or the layout of its files is not known here.
  std::optional<BirthSlot> take_slot(uint64_t directory, uint32_t xattr_count);
  // Before the lanes run: handles below `first` are in use, taken over from the former process.
  void first_handle(uint64_t first) noexcept { next_handle_.store(first); }
  uint64_t next_handle() noexcept { return next_handle_.fetch_add(1, std::memory_order_relaxed); }
  // Appends a change. True when it is the only one that waits to be taken.
  bool push(Change change);
  // Takes all waiting changes, oldest first.
  std::vector<Change> take();
  // Returns taken changes: they come before those that were pushed meanwhile.
  void put_back(std::vector<Change> changes);
  // Whether changes wait to be taken.
  bool any() const;

  // Reserves room for a change other than a birth. False: too many are not answered yet.
  bool take_room() noexcept;
  // The metaserver answered this many of them: their room is free again.
  void changes_reported(size_t count) noexcept;

  uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  uint64_t removal_count() const noexcept { return removal_count_.load(std::memory_order_relaxed); }
  uint64_t setting_count() const noexcept { return setting_count_.load(std::memory_order_relaxed); }
  uint64_t move_count() const noexcept { return move_count_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mu_;
  std::map<uint64_t, std::deque<BirthSlot>> pools_;  // guarded by mu_: those with slots
  size_t slot_count_ = 0;                            // guarded by mu_: of all pools
  // Guarded by mu_, by directory, at most one per delegated directory; none is kDefaultPool.
  std::unordered_map<uint64_t, uint64_t> pool_of_;
  std::vector<Change> changes_;         // guarded by mu_
  std::vector<uint32_t> refused_uids_;  // guarded by mu_, sorted
  std::vector<uint32_t> refused_gids_;  // guarded by mu_, sorted
  struct Share {
    uint64_t files = 0;  // how many may still be made
    uint64_t size_limit = kNoSizeLimit;
  };
  std::unordered_map<uint64_t, Share>
      shares_;  // guarded by mu_, by directory; at most one per delegated directory
  std::atomic<uint64_t> next_handle_{kFirstHandle};
  std::atomic<size_t> unreported_{0};
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> removal_count_{0};
  std::atomic<uint64_t> setting_count_{0};
  std::atomic<uint64_t> move_count_{0};
};

}  // namespace braidfs::names
