// The handles that are open, and which files lanes open for reading by themselves, and why
// (LocalOpen in inode_states.h).
//
// Invariant: an inode counts its handles, and those that lanes opened, whose number tells Python
// whether it may close the file; each handle that Python knows of is reported by RELEASE when it is
// closed. Threads: ANY THREAD; the tables' mutexes, and inodes' below them.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "client/commits.h"
#include "client/events.h"
#include "client/inodes.h"
#include "client/leases.h"
#include "client/tables.h"
#include "fuse/request.h"

namespace braidfs::client {

class OpenFiles {
 public:
  // Calls use(attributes, layout, capability) for a file that lanes know by its directory's grant.
  using UseChild = std::function<void(Bytes, Bytes, Bytes)>;
  using FindChild = std::function<void(uint64_t ino, const UseChild& use)>;
  // A file whose READs were counted is closed: bytes that were read, and its size.
  using ProbeClosed = std::function<void(uint64_t bytes_read, uint64_t size)>;

  OpenFiles(Inodes& inodes, Commits& commits, const Leases& leases, EventQueue& events)
      : inodes_(inodes), commits_(commits), leases_(leases), events_(events) {}

  // Before the first request.
  void child_finder(FindChild find) { find_child_ = std::move(find); }
  void probe_closed(ProbeClosed closed) { probe_closed_ = std::move(closed); }

  HandlePtr find(uint64_t fh) { return handles_.find(fh); }
  HandlePtr take(uint64_t fh) { return handles_.take(fh); }
  std::vector<HandlePtr> all() { return handles_.all(); }
  size_t count() const noexcept { return handles_.count(); }

  // A handle of Python's. False: unknown inode, or that handle is there already, or no room.
  bool put(uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct);
  // A handle of a file that a lane has just made; its inode is known.
  bool born(uint64_t ino, int64_t mtime_ns, const fuse::NewHandle& handle);
  // Lanes open a file by themselves (fuse::DataHandler).
  fuse::Opening open(uint64_t ino, uint64_t fh, uint32_t open_flags);
  bool open_granted(Bytes attributes, Bytes layout, Bytes capability, uint64_t fh,
                    uint32_t open_flags);
  // A handle that is in no table, under which a file of at most that size is fetched for nobody
  // yet; nullptr: that is not possible now, or it lies in its inode's record and is here already.
  HandlePtr open_unlisted(uint64_t ino, uint64_t size_max);

  // The handle is out of the table: whoever is to know is told.
  void closed(Handle& handle);
  void close_own(uint64_t fh);        // a handle that nobody but a lane knows of
  static bool is_last(Inode& inode);  // of its handles, with the one that is being closed

  // From now on lanes open it for reading by themselves while its bytes are leased. False: unknown.
  bool keep(uint64_t ino);
  // Stops lanes from opening the file by themselves. Returns how many handles of theirs are open:
  // their RELEASEs are reported from now on.
  uint32_t unkeep(uint64_t ino);
  // The same, of one that lanes have by open_granted(); nullopt: they have not.
  std::optional<uint32_t> take_granted(uint64_t ino);
  // Those that lanes have open by open_granted(): Python knows of none of them.
  std::vector<uint64_t> granted();
  // No file is opened by open_granted() while this is so.
  void pause_granted(bool paused) noexcept { granted_paused_ = paused; }

  uint64_t own_opens() const noexcept { return own_opens_.load(std::memory_order_relaxed); }
  uint64_t granted_opens() const noexcept { return granted_opens_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kInlineKeptMax = 64u << 20;
  // All with the inode LOCKED.
  bool enter(Handle handle);  // into the tables. False: that handle is there already, or no room
  // A handle that a lane opens, and why. False: no room, or the inode has left the table.
  bool open_locally(const InodePtr& inode, LocalOpen why, uint64_t fh, uint32_t open_flags);
  bool closed_locked(const Handle& handle);  // false: Python is not told
  void count_kept(Inode& inode, uint64_t bytes);
  // Takes the lock. `why` is kGranted, or kNone: as the inode's state says.
  HandlePtr open_unlisted(const InodePtr& inode, LocalOpen why, uint64_t size_max);

  Inodes& inodes_;
  Commits& commits_;
  const Leases& leases_;
  EventQueue& events_;
  HandleTable handles_{kHandlesMax};
  FindChild find_child_;
  ProbeClosed probe_closed_;
  std::atomic<uint64_t> own_opens_ = 0;
  std::atomic<uint64_t> granted_opens_ = 0;
  std::atomic<bool> granted_paused_ = false;
  std::atomic<uint64_t> inline_kept_ = 0;  // bytes of kept inodes' views
};

}  // namespace braidfs::client
