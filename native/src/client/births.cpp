// Core: files that lanes made, and those among them that may come to lie in their inode's record
// (docs/decisions/0013-delegation.md, 0037-inline-data.md).
#include <fcntl.h>

#include <mutex>
#include <optional>
#include <utility>

#include "client/core.h"

namespace braidfs::client {

bool Core::born(Bytes attributes, Bytes layout, Bytes capability, const fuse::NewHandle& handle) {
  const auto decoded = decode_attributes(attributes);
  if (!decoded || !inode_put(attributes, layout, capability)) return false;
  const bool reads_only = (handle.open_flags & O_ACCMODE) == O_RDONLY;
  inode_lease(decoded->ino, reads_only ? kLeaseData : kLeaseData | kLeaseDataExclusive, 0);
  {
    const InodePtr inode = inodes_.find(decoded->ino);
    const std::scoped_lock lock(inode->mu());
    inode->size_limit = handle.size_limit;
    inode->birth = {.untaken = true, .fh = handle.fh, .told = {.mtime_ns = decoded->mtime_ns}};
    inode->untold = inline_length_max_ != 0 && !reads_only;
  }
  return handle_put(handle.fh, decoded->ino, handle.open_flags,
                    fuse::writes_only(handle.open_flags));
}

std::optional<names::BirthSince> Core::birth_take(uint64_t ino, bool spare_open) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return names::BirthSince{};
  const std::scoped_lock lock(inode->mu());
  Inode::Birth& birth = inode->birth;
  if (spare_open && birth.untaken && birth.told.is_open) return std::nullopt;
  birth.untaken = false;
  if (!birth.told.is_open) inode->lease &= ~kLeaseDataExclusive;  // as after its CLOSE
  names::BirthSince told = birth.told;
  birth.told.inline_bytes.clear();
  return told;
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
