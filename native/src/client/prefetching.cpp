#include "client/prefetching.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace braidfs::client {

namespace {

using prefetch::Prefetcher;

void expire_later(Lane& lane) {
  lane.loop().call_at(lane.loop().now() + Prefetcher::kExpireEvery, [&lane] {
    if (lane.context().prefetcher().expire(lane.loop().now())) expire_later(lane);
  });
}

void fetch_announced_later(Lane& lane) {
  lane.loop().defer([&lane] { fetch_announced(lane); });
}

void take_result(Lane& lane, EarlyFetch::Result& result, bool is_good) {
  Prefetcher& prefetcher = lane.context().prefetcher();
  const CachedExtent& extent = result.extent;
  proceed_all(lane, is_good ? prefetcher.fetched(extent, std::move(result.bytes), lane.loop().now())
                            : prefetcher.missed(extent.ino, extent.offset));
  if (prefetcher.takes_timer()) expire_later(lane);
}

void extent_came(Lane& lane, EarlyFetch::Result result) {
  take_result(lane, result, static_cast<bool>(result.bytes));
}

// The file was opened for this fetch: its handle is closed, whatever came.
void announced_came(Lane& lane, EarlyFetch::Result result) {
  Context& context = lane.context();
  const InodePtr inode = result.handle->inode;
  context.open_files().closed(*result.handle);
  context.inodes().idle(inode);
  take_result(lane, result, result.bytes && result.is_whole);
  fetch_announced_later(lane);
}

void fetch_whole(Lane& lane, const HandlePtr& handle) {
  uint64_t size = 0;
  {
    const std::scoped_lock lock(handle->inode->mu());
    size = std::min<uint64_t>(handle->inode->size(), prefetch::Policy::kSmallFileMax);
  }
  EarlyFetch::start(lane, {handle->inode, 0, static_cast<uint32_t>(size), handle}, announced_came);
}

}  // namespace

void fetch_extents(Lane& lane, const InodePtr& inode, const prefetch::Extents& extents) {
  for (const prefetch::Extent& extent : extents)
    EarlyFetch::start(lane, {inode, extent.offset, extent.length}, extent_came);
}

void fetch_announced(Lane& lane) {
  Context& context = lane.context();
  Prefetcher& prefetcher = context.prefetcher();
  bool is_one_missing = false;
  for (const uint64_t ino : prefetcher.take_announced(lane.loop().now())) {
    const HandlePtr handle =
        context.open_files().open_unlisted(ino, prefetch::Policy::kSmallFileMax);
    if (handle) {
      fetch_whole(lane, handle);
    } else {
      is_one_missing = true;
      proceed_all(lane, prefetcher.missed(ino, 0));
    }
  }
  if (is_one_missing) fetch_announced_later(lane);
}

}  // namespace braidfs::client
