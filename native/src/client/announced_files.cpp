#include "client/announced_files.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace braidfs::client {

namespace {

// Looks now and then what has to go, while there is something; `runs` while it does.
template <typename Fetched>
void expire_later(Lane& lane, Fetched& fetched, std::atomic<bool>& runs) {
  lane.loop().call_at(lane.loop().now() + Fetched::kKeptFor / 2, [&lane, &fetched, &runs] {
    if (fetched.expire(lane.loop().now())) return expire_later(lane, fetched, runs);
    runs = false;
  });
}

void fetch_announced_later(Lane& lane) {
  lane.loop().defer([&lane] { fetch_announced(lane); });
}

// What was fetched, or could not be: its handle is done with.
void announced_came(Lane& lane, EarlyFetch::Result file) {
  Context& context = lane.context();
  Prefetched& prefetched = context.prefetched();
  const InodePtr inode = file.handle->inode;
  context.open_files().closed(*file.handle);
  context.inodes().idle(inode);
  const CachedExtent& all = file.extent;
  proceed_all(lane, file.bytes && file.is_whole
                        ? prefetched.announced().fetched(all.ino, all.stamp, all.length,
                                                         std::move(file.bytes))
                        : prefetched.announced().missed(all.ino));
  if (!prefetched.announced_expire().exchange(true))
    expire_later(lane, prefetched.announced(), prefetched.announced_expire());
  fetch_announced_later(lane);
}

void fetch_whole(Lane& lane, const HandlePtr& handle) {
  uint64_t size = 0;
  {
    const std::scoped_lock lock(handle->inode->mu());
    size = std::min<uint64_t>(handle->inode->size(), Announced::kFileMax);
  }
  EarlyFetch::start(lane, {handle->inode, 0, static_cast<uint32_t>(size), handle}, announced_came);
}

}  // namespace

void fetch_announced(Lane& lane) {
  Context& context = lane.context();
  Announced& announced = context.prefetched().announced();
  bool is_one_missing = false;
  for (const uint64_t ino : announced.take(lane.loop().now())) {
    if (const HandlePtr handle = context.open_files().open_unlisted(ino, Announced::kFileMax)) {
      fetch_whole(lane, handle);
    } else {
      is_one_missing = true;
      proceed_all(lane, announced.missed(ino));
    }
  }
  if (is_one_missing) fetch_announced_later(lane);
}

Announced::Found find_announced(Lane& lane, Fetch& fetch,
                                const std::shared_ptr<Operation>& reader) {
  Announced& announced = lane.context().prefetched().announced();
  if (fetch.stamp() == 0 || !announced.any()) return Announced::Found::kNo;
  return announced.read(fetch.extent(), fetch.buffer(), reader);
}

void piece_came(Lane& lane, EarlyFetch::Result piece) {
  Prefetched& prefetched = lane.context().prefetched();
  Streams& streams = prefetched.streams();
  const CachedExtent& extent = piece.extent;
  proceed_all(lane, piece.bytes ? streams.fetched(extent, std::move(piece.bytes), lane.loop().now())
                                : streams.missed(extent.ino, extent.offset));
  if (!prefetched.streams_expire().exchange(true))
    expire_later(lane, streams, prefetched.streams_expire());
}

}  // namespace braidfs::client
