// What lanes change themselves in directories that are delegated to this client
// (docs/decisions/0013-delegation.md and 0014-removals.md): slots that the metaserver gave
// beforehand, each an inode number with its layout and capability; births, each a slot that became
// a file; removals, each a name that went; settings, each new attributes of a file that only this
// client may write, or that nobody has open (docs/decisions/0024-settings.md); and moves, each a
// name that became another one of the same directory (0025-renames.md). The metaserver is still to
// be told of them, in the order in which they were answered.
//
// Bounded: there are never more births than there were slots, and kUnreportedMax of the others that
// the metaserver has not answered. ANY THREAD, guarded by mu_.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
  uint64_t size_limit = kNoSizeLimit;  // what the file may grow to before quotas are asked
};

// What became of a new file until its birth was taken (docs/decisions/0026-size-with-the-birth.md).
struct BirthSince {
  uint32_t changes = 0;  // how often size and time were committed
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool is_open = true;         // by the handle that came with it
  std::string inline_bytes{};  // all of the file, if they are to lie in its record
};

struct Birth {
  uint64_t ino = 0;
  uint64_t parent = 0;
  uint64_t fh = 0;
  int64_t time_ns = 0;  // since 1970: of the file, and of its directory's change
  uint32_t mode = 0;    // permissions, the umask taken off
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t open_flags = 0;  // O_*
  std::string name;
  std::string layout;
  BirthSince since{};
};

// A name that went, of what is no directory.
struct Removal {
  uint64_t ino = 0;
  uint64_t parent = 0;
  int64_t time_ns = 0;  // since 1970: of the directory's change, and the inode's
  std::string name;
  record::Record record{};  // of the inode, as it is since
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
  int64_t written_ns = 0;   // when it was written before, if its own time was set; else 0
  record::Record record{};  // as it is since, but for what was written
};

// A name that what is no directory has instead of another one, in the same directory.
struct Move {
  uint64_t ino = 0;
  uint64_t replaced = 0;  // what had the new name, which was its only one; 0: nothing
  uint64_t parent = 0;
  int64_t time_ns = 0;  // since 1970: of the directory's change, and of both inodes'
  std::string name;
  std::string new_name;
  record::Record record{};           // of the inode, as it is since, but for what was written
  record::Record replaced_record{};  // of the other one, as it is since
};

using Change = std::variant<Birth, Removal, Setting, Move>;

// The attribute record of the new file, as the metaserver will make it.
record::Record new_file_record(const Birth& birth) noexcept;

class ChangeJournal {
 public:
  static constexpr size_t kSlotsMax = 4096;
  static constexpr size_t kUnreportedMax = 4096;
  static constexpr uint64_t kFirstHandle = uint64_t{1} << 62;  // apart from Python's

  // False when there would be too many.
  bool slots_put(std::vector<BirthSlot> slots);
  // The session is another one, or another metaserver answers: nothing is known of them there.
  void slots_clear();
  size_t slots() const;

  // Files of these users and groups are not made here: quotas may refuse them.
  void refuse(std::vector<uint32_t> uids, std::vector<uint32_t> gids);
  bool refuses(uint32_t uid, uint32_t gid) const;

  // In a directory of a tree with limits: so many files more may be made here, each of which may
  // grow to that size before quotas are asked.
  void share(uint64_t directory, uint64_t files, uint64_t size_limit);
  // The directory has no share any more: its tree has no limits, or nobody makes files here.
  void unshare(uint64_t directory);

  // For a file in that directory; none where its share is used up.
  std::optional<BirthSlot> take_slot(uint64_t directory);
  // Before the lanes run: those below are in use, by handles that this process has taken over.
  void first_handle(uint64_t first) noexcept { next_handle_.store(first); }
  uint64_t next_handle() noexcept { return next_handle_.fetch_add(1, std::memory_order_relaxed); }
  // True when it is the first that waits to be taken.
  bool push(Change change);
  // All that have not been taken, oldest first.
  std::vector<Change> take();
  // These are not taken after all: they come before what was pushed meanwhile.
  void put_back(std::vector<Change> changes);
  // Some wait to be taken.
  bool any() const;

  // Before anything but a birth is pushed; false: too many are not answered yet.
  bool take_room() noexcept;
  // The metaserver answered so many of them.
  void changes_told(size_t count) noexcept;

  uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  uint64_t removal_count() const noexcept { return removal_count_.load(std::memory_order_relaxed); }
  uint64_t setting_count() const noexcept { return setting_count_.load(std::memory_order_relaxed); }
  uint64_t move_count() const noexcept { return move_count_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mu_;
  std::deque<BirthSlot> slots_;         // guarded by mu_
  std::vector<Change> changes_;         // guarded by mu_
  std::vector<uint32_t> refused_uids_;  // guarded by mu_, sorted
  std::vector<uint32_t> refused_gids_;  // guarded by mu_, sorted
  struct Share {
    uint64_t files = 0;  // that may still be made
    uint64_t size_limit = kNoSizeLimit;
  };
  std::unordered_map<uint64_t, Share>
      shares_;  // guarded by mu_, by directory; as many as are delegated
  std::atomic<uint64_t> next_handle_{kFirstHandle};
  std::atomic<size_t> unreported_{0};
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> removal_count_{0};
  std::atomic<uint64_t> setting_count_{0};
  std::atomic<uint64_t> move_count_{0};
};

}  // namespace braidfs::names
