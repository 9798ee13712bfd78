#include "client/open_files.h"

#include <fcntl.h>

#include <limits>
#include <memory>
#include <mutex>
#include <utility>

namespace braidfs::client {

namespace {

// A number that no handle has. Python takes it for a handle that a lane opened.
constexpr uint64_t kUnlisted = std::numeric_limits<int64_t>::max();

}  // namespace

bool OpenFiles::put(uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return enter({.fh = fh, .inode = inode, .open_flags = open_flags, .direct = direct});
}

bool OpenFiles::enter(Handle handle) {
  Inode& inode = *handle.inode;
  handle.error_seen = inode.error_seen_at_open();
  bool made = false;
  const uint64_t fh = handle.fh;
  const HandlePtr entry = handles_.find_or(fh, [&] {
    made = true;
    handle.noted = commits_.record().put({.fh = fh,
                                          .ino = inode.ino(),
                                          .open_flags = handle.open_flags,
                                          .direct = handle.direct,
                                          .kind = OpenRecord::Kind::kHandle});
    return std::make_shared<Handle>(std::move(handle));
  });
  if (!entry || !made) return false;
  ++inode.handles;
  inode.past_pages += entry->writes_past_pages() ? 1 : 0;
  inode.set_dropped(false);
  return true;
}

bool OpenFiles::born(uint64_t ino, int64_t mtime_ns, const fuse::NewHandle& handle) {
  const bool reads_only = (handle.open_flags & O_ACCMODE) == O_RDONLY;
  const InodePtr inode = inodes_.find(ino);
  const std::scoped_lock lock(inode->mu());
  inode->size_limit = handle.size_limit;
  inode->birth = {.untaken = true, .since = {.mtime_ns = mtime_ns}};
  const bool may_come_along = commits_.inline_length_max() != 0 && !reads_only;
  inode->inlining = may_come_along ? Inlining::kPossible : Inlining::kNo;
  return enter({.fh = handle.fh,
                .inode = inode,
                .open_flags = handle.open_flags,
                .direct = fuse::writes_only(handle.open_flags),
                .local_open = LocalOpen::kCreated});
}

// ---- lanes open files by themselves ----

fuse::Opening OpenFiles::open(uint64_t ino, uint64_t fh, uint32_t open_flags) {
  using fuse::Opening;
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return Opening::kRefused;
  const std::scoped_lock lock(inode->mu());
  const LocalOpen why = inode->local_open;
  if (why == LocalOpen::kNone || !leases_.count() || !leases_.holds(*inode, kLeaseData))
    return Opening::kRefused;
  if (!open_locally(inode, why, fh, open_flags)) return Opening::kRefused;
  return inode->is_fetching ? Opening::kDropsPages : Opening::kKeepsPages;
}

bool OpenFiles::open_granted(Bytes attributes, Bytes layout, Bytes capability, uint64_t fh,
                             uint32_t open_flags) {
  if (granted_paused_) return false;
  const auto records = decode_file(attributes, layout, capability);
  if (!records || !inodes_.put(*records)) return false;
  const InodePtr inode = inodes_.find(records->attributes.ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  inode->lease = kLeaseData;
  if (!leases_.holds(*inode, kLeaseData) ||
      !open_locally(inode, LocalOpen::kGranted, fh, open_flags)) {
    return false;
  }
  inode->local_open = LocalOpen::kGranted;
  granted_opens_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool OpenFiles::open_locally(const InodePtr& inode, LocalOpen why, uint64_t fh,
                             uint32_t open_flags) {
  if (inode->lifetime == Lifetime::kGone ||
      !enter({.fh = fh, .inode = inode, .open_flags = open_flags, .local_open = why})) {
    return false;
  }
  ++inode->local_handles;
  own_opens_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

HandlePtr OpenFiles::open_unlisted(uint64_t ino, uint64_t size_max) {
  if (const InodePtr inode = inodes_.find(ino))
    return open_unlisted(inode, LocalOpen::kNone, size_max);
  HandlePtr opened;
  if (!find_child_ || granted_paused_) return opened;
  find_child_(ino, [&](Bytes attributes, Bytes layout, Bytes capability) {
    if (!inodes_.put(attributes, layout, capability)) return;
    if (const InodePtr inode = inodes_.find(ino))
      opened = open_unlisted(inode, LocalOpen::kGranted, size_max);
  });
  return opened;
}

HandlePtr OpenFiles::open_unlisted(const InodePtr& inode, LocalOpen why, uint64_t size_max) {
  const std::scoped_lock lock(inode->mu());
  if (why == LocalOpen::kGranted) inode->lease = kLeaseData;
  if (why == LocalOpen::kNone) why = inode->local_open;
  const uint64_t size = inode->size();
  const bool is_wanted = size > 0 && size <= size_max && inode->view_locked()->inline_bytes.empty();
  if (!is_wanted || inode->lifetime == Lifetime::kGone || why == LocalOpen::kNone ||
      !leases_.count() || !leases_.holds(*inode, kLeaseData)) {
    return nullptr;
  }
  inode->local_open = why;
  ++inode->handles;
  ++inode->local_handles;
  inode->lifetime = Lifetime::kKnown;
  return std::make_shared<Handle>(
      Handle{.fh = kUnlisted, .inode = inode, .open_flags = O_RDONLY, .local_open = why});
}

// ---- closing ----

bool OpenFiles::is_last(Inode& inode) {
  const std::scoped_lock lock(inode.mu());
  return inode.handles <= 1;
}

void OpenFiles::closed(Handle& handle) {
  commits_.record().drop(handle.noted);
  {
    const std::scoped_lock lock(handle.inode->mu());
    if (!closed_locked(handle)) return;
  }
  events_.put({.kind = EventKind::kRelease,
               .ino = handle.inode->ino(),
               .a = static_cast<int64_t>(handle.fh),
               .b = handle.open_flags});
}

bool OpenFiles::closed_locked(const Handle& handle) {
  Inode& inode = *handle.inode;
  --inode.handles;
  if (handle.writes_past_pages() && --inode.past_pages == 0) inode.filled = {};
  if (std::exchange(inode.is_probe, false) && probe_closed_)
    probe_closed_(inode.probed_bytes, inode.size());
  if (inode.birth.untaken && handle.local_open == LocalOpen::kCreated) {
    // Python never learns of this handle.
    inode.birth.since.is_open = false;
    return false;
  }
  if (!handle.is_local()) return true;
  --inode.local_handles;
  if (inode.local_open == LocalOpen::kGranted && inode.local_handles == 0) {
    inode.local_open = LocalOpen::kNone;
    inode.set_dropped(inode.handles == 0);
    return false;
  }
  return inode.local_open == LocalOpen::kNone;
}

void OpenFiles::close_own(uint64_t fh) {
  const HandlePtr handle = handles_.take(fh);
  if (!handle) return;
  closed(*handle);
  inodes_.idle(handle->inode);
}

// ---- files that Python keeps open ----

bool OpenFiles::keep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  const uint64_t bytes = inode->view_locked()->inline_bytes.size();
  if (bytes != 0 && inline_kept_ + bytes > kInlineKeptMax) return false;
  count_kept(*inode, bytes);
  if (inode->local_open == LocalOpen::kNone) inode->local_open = LocalOpen::kKept;
  return true;
}

void OpenFiles::count_kept(Inode& inode, uint64_t bytes) {
  inline_kept_ += bytes;
  inline_kept_ -= std::exchange(inode.kept_bytes, bytes);
}

uint32_t OpenFiles::unkeep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return 0;
  const std::scoped_lock lock(inode->mu());
  count_kept(*inode, 0);
  inode->local_open = LocalOpen::kNone;
  return inode->local_handles;
}

std::optional<uint32_t> OpenFiles::take_granted(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  if (inode->local_open != LocalOpen::kGranted) return std::nullopt;
  inode->local_open = LocalOpen::kNone;
  return inode->local_handles;
}

std::vector<uint64_t> OpenFiles::granted() {
  std::vector<uint64_t> found;
  for (const InodePtr& inode : inodes_.all()) {
    const std::scoped_lock lock(inode->mu());
    if (inode->local_open == LocalOpen::kGranted) found.push_back(inode->ino());
  }
  return found;
}

}  // namespace braidfs::client
