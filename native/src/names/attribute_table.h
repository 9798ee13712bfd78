// A table of attributes that Python received, so that lanes answer GETATTR, and GETXATTR of an
// inode without extended attributes, without an upcall. Every CREATE makes the kernel ask again for
// its directory's attributes, and the first write of every file asks for security.capability: two
// upcalls for each new file, whose answers were already in the reply to the CREATE.
//
// A record is valid until its deadline (the mount's attr_timeout counted from when Python put it)
// or, if it was put under a META lease, as long as the session's leases last. A newer
// change_version replaces an older one and never the reverse, even when the record is no longer
// valid (drop()). Without a lease only the GETATTR of directories is answered. Callers do not ask
// for a file that lanes have written to. Bounded: kSlotCount records in sets of kWays, like a
// processor's cache; in a full set a new inode replaces the one that was put or answered longest
// ago. ANY THREAD; one mutex guards a group of sets.
#pragma once
#include <linux/fuse.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "names/attribute_record.h"

namespace braidfs::names {

// The kernel's form of a packed record. nodeid: the number by which the kernel knows the inode.
fuse_attr attr_of(std::span<const std::byte> record, uint64_t nodeid) noexcept;

class AttributeTable {
 public:
  using Clock = braidfs::Clock;
  static constexpr size_t kRecordSize = record::kBytes;

  AttributeTable() : inos_(kSlotCount), slots_(kSlotCount) {}

  static constexpr std::chrono::milliseconds kFresh{1000};
  static constexpr std::chrono::hours kSealedLife{24};

  // Before the first request: the kernel may cache immutable inodes for kSealedLife, not only for
  // as long as the leases last (sealed.cpp).
  void seal() noexcept { sealed_ = true; }
  // On a sealed tree an immutable inode keeps its name: the kernel may cache the name as long as
  // the attributes.
  void keep_name(fuse_entry_out& entry) const noexcept {
    if (!sealed_ || entry.nodeid == 0 || entry.attr_valid <= entry.entry_valid) return;
    entry.entry_valid = entry.attr_valid;
    entry.entry_valid_nsec = entry.attr_valid_nsec;
  }

  // Called with each renewal: the session's leases last until then.
  void believe(Clock::time_point until) noexcept {
    lease_until_.store(until.time_since_epoch().count());
  }

  // Adds or replaces a record (docs/INTERFACES.md section 1). leased: this client holds a META
  // lease on the inode. False: the record has the wrong size.
  bool put(std::span<const std::byte> record, std::chrono::milliseconds valid,
           Clock::time_point now, bool leased = false);
  // The lease is recalled, or the record became wrong. True when the record was put or answered
  // less than kFresh ago: a process may not have taken that answer yet.
  bool drop(uint64_t ino, Clock::time_point now = Clock::now());
  void clear();

  // The body of a GETATTR reply with `nodeid` as its number; nothing when Python must answer.
  std::optional<fuse_attr_out> getattr(uint64_t ino, uint64_t nodeid, Clock::time_point now);
  // The parent of this directory; nothing when Python must answer.
  std::optional<uint64_t> parent(uint64_t directory, Clock::time_point now);
  // This client itself creates a file in the directory if take() agrees: sets the directory's times
  // and versions as the metaserver will. False when lanes may not add names to it: it is not known
  // under a lease, or has set-group-ID or inode flags. take(xattr_count) refuses if new files in it
  // need more than the caller's ids and umask and the layout. Take: bool(uint32_t).
  template <typename Take>
  bool touch_directory(uint64_t ino, int64_t time_ns, Clock::time_point now, Take take) {
    const std::scoped_lock lock(mutex(ino));
    Slot* held = find(ino);
    if (!may_add_names(held, now)) return false;
    if (!take(record::field<uint32_t>(held->record, record::kXattrCount))) return false;
    touch(*held, time_ns);
    return true;
  }
  // Sets attributes of a regular file at this client alone: change(record) sets them, and returns
  // whether it did. The file must be known under a lease, without extended attributes and inode
  // flags. Returns the body of the answer, with `nodeid` as its number. Change:
  // bool(record::Record&).
  template <typename Change>
  std::optional<fuse_attr_out> set(uint64_t ino, uint64_t nodeid, Clock::time_point now,
                                   Change change) {
    const std::scoped_lock lock(mutex(ino));
    Slot* held = find(ino);
    if (!is_plain_file(held, now) || !change(held->record)) return std::nullopt;
    held->used_at = now;
    return answer_of(*held, nodeid, now);
  }
  // Bytes of a file that only this client may write were written and committed: sets its size if
  // that rises, its mtime (0: unknown), and its versions as the metaserver will. If it is not
  // certain that this client alone may write the file, its record is forgotten.
  struct Wrote {
    uint64_t size = 0;
    int64_t mtime_ns = 0;
  };
  void wrote(uint64_t ino, const Wrote& wrote, Clock::time_point now);
  // A name of ino is removed from the directory by this client alone: sets the times and versions
  // of both as the metaserver will. The inode must have one name, be no directory and not be open
  // at another client; both must be known under leases, without inode flags. take(record) is called
  // with the inode's record after the removal; if it refuses, nothing is changed. After drop() of
  // the inode has returned, no removal of it is taken. Take: bool(const record::Record&).
  template <typename Take>
  bool remove(uint64_t directory, uint64_t ino, int64_t time_ns, Clock::time_point now, Take take) {
    const Locked locked(*this, directory, ino, ino);
    if (!may_change_names(directory, now) || !may_go(ino, now)) return false;
    Slot& gone = *find(ino);
    const record::Record left = removed(gone.record, time_ns);
    if (!take(left)) return false;
    gone.record = left;
    touch(*find(directory), time_ns);
    return true;
  }
  // ino gets another name in the same directory, which `replaced` (0: nothing) loses; otherwise
  // like remove(), for both. ino may have several names and be open anywhere. Take: bool(const
  // record::Record& moved, const record::Record& replaced); without `replaced` its record is empty.
  template <typename Take>
  bool rename(uint64_t directory, uint64_t ino, uint64_t replaced, int64_t time_ns,
              Clock::time_point now, Take take) {
    const Locked locked(*this, directory, ino, replaced == 0 ? ino : replaced);
    if (!may_change_names(directory, now) || !may_move(ino, now)) return false;
    if (replaced != 0 && !may_go(replaced, now)) return false;
    Slot& moved = *find(ino);
    const record::Record there = changed(moved.record, time_ns);
    const record::Record left =
        replaced == 0 ? record::Record{} : removed(find(replaced)->record, time_ns);
    if (!take(there, left)) return false;
    moved.record = there;
    if (replaced != 0) find(replaced)->record = left;
    touch(*find(directory), time_ns);
    return true;
  }
  // Nothing: the inode's attributes are not leased.
  std::optional<bool> is_immutable(uint64_t ino, Clock::time_point now);
  // True when ino is known to have no extended attribute at all.
  bool has_no_xattrs(uint64_t ino, Clock::time_point now);

  uint64_t answered() const noexcept { return answered_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::array<std::byte, kRecordSize> record;
    Clock::time_point until;    // the epoch: no deadline
    bool leased;                // valid while leases last
    Clock::time_point used_at;  // when it was put or answered last
  };
  static constexpr size_t kSlotCount = 1u
                                       << 18;  // twice as many as a session has leases by default
  static constexpr size_t kWays = 8;           // their inode numbers share a cache line or two
  static constexpr size_t kSetCount = kSlotCount / kWays;
  static constexpr size_t kGroupCount = 64;

  // Locks the groups of up to three inodes, always in the same order.
  class Locked {
   public:
    Locked(AttributeTable& table, uint64_t one, uint64_t two, uint64_t three);

   private:
    std::array<std::unique_lock<std::mutex>, 3> locks_;
  };

  std::mutex& mutex(uint64_t ino) noexcept { return groups_[ino % kGroupCount]; }
  static size_t first_slot(uint64_t ino) noexcept { return ino % kSetCount * kWays; }
  Slot* find(uint64_t ino) noexcept;
  static void forget(Slot& slot) noexcept {
    slot.until = {};
    slot.leased = false;
  }
  Slot& place(uint64_t ino, Clock::time_point now) noexcept;
  Clock::time_point end_of(const Slot& slot) const noexcept;
  bool is_valid(const Slot* slot, Clock::time_point now) const noexcept;
  bool is_plain_file(const Slot* slot, Clock::time_point now) const noexcept;
  fuse_attr_out answer_of(const Slot& slot, uint64_t nodeid, Clock::time_point now) const noexcept;
  bool may_add_names(const Slot* slot, Clock::time_point now) const noexcept;
  bool is_unprotected(const Slot* slot, Clock::time_point now) const noexcept;
  bool may_change_names(uint64_t directory, Clock::time_point now) noexcept;
  bool may_move(uint64_t ino, Clock::time_point now) noexcept;
  bool may_go(uint64_t ino, Clock::time_point now) noexcept;
  static record::Record changed(record::Record record, int64_t time_ns) noexcept;
  static record::Record removed(record::Record record, int64_t time_ns) noexcept;
  static void touch(Slot& directory, int64_t time_ns) noexcept;

  std::array<std::mutex, kGroupCount> groups_;  // a set's inodes share their group
  std::vector<uint64_t> inos_;                  // of the slots; 0: never used. Guarded by groups_
  std::vector<Slot> slots_;                     // guarded by groups_
  std::atomic<uint64_t> answered_{0};
  bool sealed_ = false;
  std::atomic<Clock::rep> lease_until_{0};
};

}  // namespace braidfs::names
