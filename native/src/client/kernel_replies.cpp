#include "client/kernel_replies.h"

#include <mutex>

namespace braidfs::client {

void KernelReplies::invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read,
                                     Then then) {
  if (invalidate_pages_) return invalidate_pages_(ino, offset, length, read, std::move(then));
  if (then) then();
}

// The inode's mutex is held until the pages are stored, so whoever opens the file meanwhile waits,
// and so does a recall. There is no deadlock: the file has one handle, which the kernel does not
// know yet, so no READ has locked pages that the store would wait for.
bool KernelReplies::store_pages(Inode& inode, uint64_t stamp, uint64_t nodeid,
                                std::span<const std::byte> bytes) {
  const std::scoped_lock lock(inode.mu());
  inode.is_fetching = false;
  if (stamp == 0 || inode.stamp() != stamp || !leases_.holds(inode, kLeaseData)) return false;
  if (inode.handles != 1 || inode.size() != bytes.size()) return false;
  if (!replier_->store_pages(nodeid, bytes)) return false;
  opens_stored_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace braidfs::client
