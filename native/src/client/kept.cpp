// Core: files that lanes open for reading by themselves, because Python keeps them open
// (docs/decisions/0017-kept-open.md) or by the grant of their directory (0022-directory-grants.md).
#include <mutex>
#include <utility>

#include "client/core.h"
#include "client/read.h"

namespace braidfs::client {

fuse::Opening Core::open(uint64_t ino, uint64_t fh, uint32_t open_flags) {
  using fuse::Opening;
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return Opening::kRefused;
  const std::scoped_lock lock(inode->mu());
  if (!inode->kept || !leases_count() || !holds(*inode, kLeaseData)) return Opening::kRefused;
  if (!open_own(inode, fh, open_flags)) return Opening::kRefused;
  return inode->is_fetching ? Opening::kDropsPages : Opening::kKeepsPages;
}

bool Core::open_granted(Bytes attributes, Bytes layout, Bytes capability, uint64_t fh,
                        uint32_t open_flags) {
  const auto decoded = decode_attributes(attributes);
  if (granted_paused_ || !decoded || !inode_put(attributes, layout, capability)) return false;
  const InodePtr inode = inodes_.find(decoded->ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  inode->lease = kLeaseData;
  if (!holds(*inode, kLeaseData) || !open_own(inode, fh, open_flags)) return false;
  inode->kept = inode->granted = true;
  granted_opens_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Core::open_own(const InodePtr& inode, uint64_t fh, uint32_t open_flags) {
  if (inode->gone || !enter({.fh = fh, .inode = inode, .open_flags = open_flags, .own = true}))
    return false;
  ++inode->own_handles;
  own_opens_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Core::fetch_opened(fuse::LaneContext& context, const fuse::RequestHead& head, uint64_t fh) {
  const HandlePtr handle = whole_reads_.is_watching() ? handles_.find(fh) : nullptr;
  if (!handle) return false;
  uint64_t size = 0;
  {
    Inode& inode = *handle->inode;
    const std::scoped_lock lock(inode.mu());
    size = inode.size();
    const bool is_small = size > 0 && size <= Announced::kFileMax;
    if (inode.handles != 1 || !is_small) return false;
    if (!whole_reads_.fetches()) {
      inode.is_probe = true;
      inode.probed_bytes = 0;
      return false;
    }
    inode.is_fetching = true;
  }
  Lane& lane = *lanes_[context.index];
  ReadOperation::fetch_opened(lane, lane.make_read(), handle, head, static_cast<uint32_t>(size));
  return true;
}

// The inode's mutex is held until they are there: whoever opens it meanwhile waits, and so does a
// recall. With one handle, of which the kernel is not told yet, no READ has pages locked that this
// would wait for.
bool Core::store_pages(Inode& inode, uint64_t stamp, uint64_t nodeid, Bytes bytes) {
  const std::scoped_lock lock(inode.mu());
  inode.is_fetching = false;
  if (stamp == 0 || inode.stamp() != stamp || !holds(inode, kLeaseData)) return false;
  if (inode.handles != 1 || inode.size() != bytes.size()) return false;
  if (!replier_->store_pages(nodeid, bytes)) return false;
  opens_stored_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Core::close_own(uint64_t fh) {
  const HandlePtr handle = handles_.take(fh);
  if (!handle) return;
  handle_closed(*handle);
  inode_idle(handle->inode);
}

std::vector<uint64_t> Core::inodes_granted() {
  std::vector<uint64_t> found;
  for (const InodePtr& inode : inodes_.all()) {
    const std::scoped_lock lock(inode->mu());
    if (inode->granted) found.push_back(inode->ino());
  }
  return found;
}

bool Core::inode_keep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  const uint64_t bytes = inode->view_locked()->inline_bytes.size();
  if (bytes != 0 && inline_kept_ + bytes > kInlineKeptMax) return false;
  count_kept(*inode, bytes);
  return inode->kept = true;
}

uint32_t Core::inode_unkeep(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return 0;
  const std::scoped_lock lock(inode->mu());
  count_kept(*inode, 0);
  inode->kept = inode->granted = false;
  return inode->own_handles;
}

std::optional<uint32_t> Core::take_granted(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  if (!inode->granted) return std::nullopt;
  inode->kept = inode->granted = false;
  return inode->own_handles;
}

}  // namespace braidfs::client
