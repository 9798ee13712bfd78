// Core: files that lanes made, and those among them that may come to lie in their inode's record
// (docs/decisions/0013-delegation.md, 0037-inline-data.md).
#include <fcntl.h>

#include <mutex>
#include <utility>

#include "client/core.h"

namespace braidfs::client {

bool Core::born(Bytes attributes, Bytes layout, Bytes capability, uint64_t fh, uint32_t open_flags) {
  const auto decoded = decode_attributes(attributes);
  if (!decoded || !inode_put(attributes, layout, capability)) return false;
  const bool reads_only = (open_flags & O_ACCMODE) == O_RDONLY;
  inode_lease(decoded->ino, reads_only ? kLeaseData : kLeaseData | kLeaseDataExclusive, 0);
  {
    const InodePtr inode = inodes_.find(decoded->ino);
    const std::scoped_lock lock(inode->mu());
    inode->birth = {.untaken = true, .fh = fh, .mtime_ns = decoded->mtime_ns};
    inode->untold = inline_length_max_ != 0 && !reads_only;
  }
  return handle_put(fh, decoded->ino, open_flags, fuse::writes_only(open_flags));
}

Inode::Birth Core::birth_take(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return {};
  const std::scoped_lock lock(inode->mu());
  inode->birth.untaken = false;
  if (!inode->birth.is_open) inode->lease &= ~kLeaseDataExclusive;  // as after its CLOSE
  Inode::Birth taken = inode->birth;
  inode->birth.inline_bytes.clear();
  return taken;
}

bool Core::newborn_is_open(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->birth.untaken && inode->birth.is_open;
}

void Core::births_told(std::span<const uint64_t> inos) {
  for (const uint64_t ino : inos) {
    const InodePtr inode = inodes_.find(ino);
    if (!inode) continue;
    const std::scoped_lock lock(inode->mu());
    inode->untold = false;
  }
}

void Core::count_kept(Inode& inode, uint64_t bytes) {
  inline_kept_ += bytes;
  inline_kept_ -= std::exchange(inode.kept_bytes, bytes);
}

}  // namespace braidfs::client
