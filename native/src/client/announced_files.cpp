// Core: what is announced (announced.h) is opened, fetched and closed again, without a word to
// Python.
#include <fcntl.h>

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/core.h"
#include "client/read.h"

namespace braidfs::client {

namespace {

// A number that no handle has; to Python one of the lanes' own.
constexpr uint64_t kUnlisted = std::numeric_limits<int64_t>::max();

// Looks now and then what has to go, while there is something; `runs` while it does.
template <typename Fetched>
void expire_later(Lane& lane, Fetched& fetched, std::atomic<bool>& runs) {
  lane.loop().call_at(lane.loop().now() + Fetched::kKeptFor / 2, [&lane, &fetched, &runs] {
    if (fetched.expire(lane.loop().now())) return expire_later(lane, fetched, runs);
    runs = false;
  });
}

}  // namespace

size_t Core::announce(std::span<const uint64_t> inos, bool replaces) {
  const size_t count = announced_.want(inos, replaces);
  for (const auto& lane : lanes_) {
    lane->post([this](Lane& at) { fetch_announced(at); });
  }
  return count;
}

void Core::pause_fetching(bool paused) {
  streams_.pause(paused);
  announced_.pause(paused);
  if (!paused) announce({}, false);
}

void Core::fetch_announced(Lane& lane) {
  bool is_one_missing = false;
  for (const uint64_t ino : announced_.take(lane.loop().now())) {
    if (const HandlePtr handle = open_announced(ino)) {
      ReadOperation::fetch(lane, lane.make_read(), handle);
    } else {
      is_one_missing = true;
      proceed_all(lane, announced_.missed(ino));
    }
  }
  if (is_one_missing) fetch_announced_later(lane);
}

void Core::fetch_announced_later(Lane& lane) {
  lane.loop().defer([this, &lane] { fetch_announced(lane); });
}

HandlePtr Core::open_announced(uint64_t ino) {
  if (const InodePtr inode = inodes_.find(ino)) return open_unlisted(inode, false);
  HandlePtr opened;
  if (!find_child_ || granted_paused_) return opened;
  find_child_(ino, [&](Bytes attributes, Bytes layout, Bytes capability) {
    if (!inode_put(attributes, layout, capability)) return;
    if (const InodePtr inode = inodes_.find(ino)) opened = open_unlisted(inode, true);
  });
  return opened;
}

// What lies in its inode's record is here already.
HandlePtr Core::open_unlisted(const InodePtr& inode, bool granted) {
  const std::scoped_lock lock(inode->mu());
  if (granted) inode->lease = kLeaseData;
  const uint64_t size = inode->size();
  const bool is_wanted =
      size > 0 && size <= Announced::kFileMax && inode->view_locked()->inline_bytes.empty();
  if (!is_wanted || inode->gone || !(granted || inode->kept) || !leases_count() ||
      !holds(*inode, kLeaseData)) {
    return nullptr;
  }
  if (granted) inode->kept = inode->granted = true;
  ++inode->handles;
  ++inode->own_handles;
  inode->dropped = false;
  return std::make_shared<Handle>(
      Handle{.fh = kUnlisted, .inode = inode, .open_flags = O_RDONLY, .own = true});
}

void Core::announced_came(Lane& lane, const HandlePtr& handle, uint64_t stamp, uint32_t size,
                          Buffer bytes) {
  const uint64_t ino = handle->inode->ino();
  handle_closed(*handle);
  inode_idle(handle->inode);
  const bool is_right = stamp != 0 && bytes;
  proceed_all(lane, is_right ? announced_.fetched(ino, stamp, size, std::move(bytes))
                             : announced_.missed(ino));
  if (!announced_expire_.exchange(true)) expire_later(lane, announced_, announced_expire_);
  fetch_announced_later(lane);
}

void Core::piece_came(Lane& lane, const CachedExtent& extent, Buffer bytes) {
  proceed_all(lane, bytes ? streams_.fetched(extent, std::move(bytes), lane.loop().now())
                          : streams_.missed(extent.ino, extent.offset));
  if (!streams_expire_.exchange(true)) expire_later(lane, streams_, streams_expire_);
}

}  // namespace braidfs::client
