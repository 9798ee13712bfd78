#include "client/local_cache.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

namespace braidfs::client {

namespace {

using cache::kHeadBytes;
using cache::kSliceBytes;
using cache::padded;
using cache::SliceKey;

// The part of an extent that lies in one slice.
struct Cut {
  SliceKey key;
  uint32_t slice_length = 0;
  uint32_t begin = 0;  // in the slice
  uint32_t length = 0;
};

Cut first_cut(const CachedExtent& extent, uint64_t at) {
  const uint64_t slice = at / kSliceBytes;
  const uint64_t slice_begin = slice * kSliceBytes;
  const uint64_t end = std::min(extent.offset + extent.length, slice_begin + kSliceBytes);
  return {{extent.ino, static_cast<uint32_t>(slice)},
          cache::slice_length(extent.file_size, static_cast<uint32_t>(slice)),
          static_cast<uint32_t>(at - slice_begin),
          static_cast<uint32_t>(end - at)};
}

bool is_cacheable(const CachedExtent& extent) {
  constexpr uint64_t kSlicesMax = uint64_t{1} << 32;
  return extent.offset % cache::kBlock == 0 && extent.length > 0 &&
         extent.offset + extent.length <= extent.file_size &&
         extent.file_size / kSliceBytes < kSlicesMax;
}

}  // namespace

// One READ: its slices, each with its head, which is read, too. It lives until the last of its
// reads has ended.
struct LocalCache::Fetch {
  struct Piece {
    Cut cut;
    cache::Store::Found found;
    net::BufferPool::Lease head;
    std::span<std::byte> place;  // has room for whole blocks
    std::array<iovec, 2> parts{};
    bool whole = true;  // no read was short
  };
  uint64_t stamp = 0;
  std::vector<Piece> pieces;
  uint32_t pending = 0;
  Done done;
};

LocalCache::LocalCache(std::unique_ptr<cache::Cache> cache,
                       const std::vector<net::EventLoop*>& loops)
    : cache_(std::move(cache)) {
  for (net::EventLoop* loop : loops) {
    auto& end = ends_.emplace_back(std::make_unique<LaneEnd>(*loop));
    end->has_uring = net::Uring::probe() == 0 && end->uring.open() == 0;
  }
}

void LocalCache::stop() {
  ends_.clear();  // waits until their reads have ended
  cache_->stop();
}

bool LocalCache::read(uint32_t lane, const CachedExtent& extent, std::span<std::byte> place,
                      Done done) {
  const auto fetch = std::make_shared<Fetch>();
  fetch->stamp = extent.stamp;
  if (!is_cacheable(extent) || !find(*ends_[lane], extent, place, *fetch)) {
    misses_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  fetch->done = std::move(done);
  start(*ends_[lane], fetch);
  return true;
}

bool LocalCache::find(LaneEnd& end, const CachedExtent& extent, std::span<std::byte> place,
                      Fetch& fetch) {
  for (uint64_t at = extent.offset; at < extent.offset + extent.length;) {
    const Cut cut = first_cut(extent, at);
    auto found = cache_->find(cut.key, extent.stamp);
    if (!found || found->length != cut.slice_length) return false;
    auto head = end.heads.lease();
    const uint64_t from = at - extent.offset;
    if (!head || from + padded(cut.length) > place.size()) return false;
    fetch.pieces.push_back(
        {cut, std::move(*found), std::move(head), place.subspan(from, padded(cut.length))});
    at += cut.length;
  }
  return !end.has_uring || end.uring.room() >= fetch.pieces.size() * 2;
}

// The head lies directly before the slice's first block. If that block is wanted, one read gets
// both.
void LocalCache::start(LaneEnd& end, const std::shared_ptr<Fetch>& fetch) {
  fetch->pending = 1;  // for this function, until it has submitted all reads
  const auto over = [this, fetch] {
    if (--fetch->pending == 0) finish(*fetch);
  };
  const auto submit = [&](Fetch::Piece& piece, std::span<const iovec> parts, uint64_t offset) {
    size_t length = 0;
    for (const iovec& part : parts) length += part.iov_len;
    const int file = piece.found.segment->bytes.get();
    ++fetch->pending;
    const auto ended = [over, length, &piece](int64_t count) {
      if (count != static_cast<int64_t>(length)) piece.whole = false;
      over();
    };
    if (end.has_uring) return end.uring.start({file, false, parts, offset}, ended);
    ended(::preadv(file, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset)));
  };
  for (Fetch::Piece& piece : fetch->pieces) {
    piece.parts = {iovec{piece.head.begin(), kHeadBytes},
                   iovec{piece.place.data(), piece.place.size()}};
    const std::span<const iovec> parts(piece.parts);
    const uint64_t head_at = piece.found.offset;
    if (piece.cut.begin == 0) {
      submit(piece, parts, head_at);
    } else {
      submit(piece, parts.first(1), head_at);
      submit(piece, parts.last(1), head_at + kHeadBytes + piece.cut.begin);
    }
  }
  over();
}

void LocalCache::finish(Fetch& fetch) {
  bool found = true;
  uint64_t bytes = 0;
  for (const Fetch::Piece& piece : fetch.pieces) {
    const auto& head = *reinterpret_cast<const cache::RecordHead*>(piece.head.begin());
    const uint32_t checked =
        std::min(padded(piece.cut.length), piece.cut.slice_length - piece.cut.begin);
    if (!piece.whole ||
        !cache::is_head_of(head, piece.cut.key, fetch.stamp, piece.cut.slice_length) ||
        !cache::are_bytes_of(head, piece.cut.begin, piece.place.first(checked))) {
      cache_->corrupt(piece.cut.key, piece.found);
      found = false;
    }
    bytes += piece.cut.length;
  }
  (found ? hits_ : misses_).fetch_add(1, std::memory_order_relaxed);
  if (found) hit_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const Done done = std::move(fetch.done);
  fetch.pieces.clear();
  done(found);
}

void LocalCache::keep(const CachedExtent& extent, Buffer buffer) {
  if (!is_cacheable(extent)) return;
  const auto owner = std::make_shared<Buffer>(std::move(buffer));
  const std::span<std::byte> place = owner->span();
  for (uint64_t at = extent.offset; at < extent.offset + extent.length;) {
    const Cut cut = first_cut(extent, at);
    const uint64_t from = at - extent.offset;
    if (from + padded(cut.length) > place.size()) return;
    cache_->offer(cut.key, extent.stamp, cut.slice_length,
                  {cut.begin, cut.length, place.subspan(from, padded(cut.length)), owner});
    at += cut.length;
  }
}

void LocalCache::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) {
  all.emplace_back("cache_hits", hits_.load(std::memory_order_relaxed));
  all.emplace_back("cache_hit_bytes", hit_bytes_.load(std::memory_order_relaxed));
  all.emplace_back("cache_misses", misses_.load(std::memory_order_relaxed));
  for (auto& counter : cache_->counters()) all.push_back(std::move(counter));
}

}  // namespace braidfs::client
