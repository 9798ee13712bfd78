#include "client/announced_files.h"

#include <atomic>
#include <utility>

#include "client/read.h"

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

}  // namespace

void fetch_announced(Lane& lane) {
  Context& context = lane.context();
  Announced& announced = context.prefetched().announced();
  bool is_one_missing = false;
  for (const uint64_t ino : announced.take(lane.loop().now())) {
    if (const HandlePtr handle = context.open_files().open_unlisted(ino, Announced::kFileMax)) {
      ReadOperation::fetch(lane, handle);
    } else {
      is_one_missing = true;
      proceed_all(lane, announced.missed(ino));
    }
  }
  if (is_one_missing) fetch_announced_later(lane);
}

void announced_came(Lane& lane, const HandlePtr& handle, uint64_t stamp, uint32_t size,
                    Buffer bytes) {
  Context& context = lane.context();
  Prefetched& prefetched = context.prefetched();
  const uint64_t ino = handle->inode->ino();
  context.open_files().closed(*handle);
  context.inodes().idle(handle->inode);
  const bool is_right = stamp != 0 && bytes;
  proceed_all(lane, is_right ? prefetched.announced().fetched(ino, stamp, size, std::move(bytes))
                             : prefetched.announced().missed(ino));
  if (!prefetched.announced_expire().exchange(true))
    expire_later(lane, prefetched.announced(), prefetched.announced_expire());
  fetch_announced_later(lane);
}

void piece_came(Lane& lane, const CachedExtent& extent, Buffer bytes) {
  Prefetched& prefetched = lane.context().prefetched();
  Streams& streams = prefetched.streams();
  proceed_all(lane, bytes ? streams.fetched(extent, std::move(bytes), lane.loop().now())
                          : streams.missed(extent.ino, extent.offset));
  if (!prefetched.streams_expire().exchange(true))
    expire_later(lane, streams, prefetched.streams_expire());
}

}  // namespace braidfs::client
