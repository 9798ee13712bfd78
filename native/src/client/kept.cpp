// Core: files that Python keeps open, which lanes open for reading by themselves
// (docs/decisions/0017-kept-open.md, 0019-open-ahead.md).
#include <mutex>
#include <utility>

#include "client/core.h"

namespace braidfs::client {

fuse::Opening Core::open(uint64_t ino, uint64_t fh, uint32_t open_flags) {
  using fuse::Opening;
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return Opening::kRefused;
  const std::scoped_lock lock(inode->mu());
  if (!inode->kept || !leases_count() || !holds(*inode, kLeaseData)) return Opening::kRefused;
  if (!enter({.fh = fh, .inode = inode, .open_flags = open_flags, .own = true})) {
    return Opening::kRefused;
  }
  ++inode->own_handles;
  own_opens_.fetch_add(1, std::memory_order_relaxed);
  if (!inode->unused) return Opening::kKeepsPages;
  inode->unused = false;
  ahead_used_.fetch_add(1, std::memory_order_relaxed);
  return Opening::kDropsPages;
}

bool Core::inode_ahead(Bytes attributes, Bytes layout, Bytes capability) {
  const auto decoded = decode_attributes(attributes);
  if (!decoded || !inode_put(attributes, layout, capability)) return false;
  inode_lease(decoded->ino, kLeaseData, 0);
  const InodePtr inode = inodes_.find(decoded->ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  inode->kept = inode->unused = true;
  inode->dropped = false;
  ahead_given_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Core::is_unused(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->unused;
}

Core::AheadCounts Core::ahead_counts() const noexcept {
  return {ahead_given_.load(std::memory_order_relaxed), ahead_used_.load(std::memory_order_relaxed),
          ahead_unused_.load(std::memory_order_relaxed)};
}

bool Core::inode_keep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->kept = true;
}

uint32_t Core::inode_unkeep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return 0;
  const std::scoped_lock lock(inode->mu());
  inode->kept = false;
  if (std::exchange(inode->unused, false)) ahead_unused_.fetch_add(1, std::memory_order_relaxed);
  return inode->own_handles;
}

}  // namespace braidfs::client
