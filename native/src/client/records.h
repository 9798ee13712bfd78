// The packed records that Python hands over (docs/INTERFACES.md, section 1), which are decoded and
// checked here, and the arithmetic of striping. Pure functions and plain values, ANY THREAD.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::client {

// The fields of an attribute record that the file-byte path needs.
struct Attributes {
  uint64_t ino = 0;
  uint64_t size = 0;
  uint64_t data_version = 0;
  uint64_t change_version = 0;
  int64_t mtime_ns = 0;
  uint32_t mode = 0;
  uint32_t gid = 0;
  bool is_immutable = false;
};
std::optional<Attributes> decode_attributes(std::span<const std::byte> record) noexcept;

// One replica of a stripe: its target, and the number of its object there (frame.h). The two name
// it for ever: a replica that was dropped from the layout never comes back under its name.
struct Replica {
  uint32_t target = 0;
  uint32_t object_number = 0;
  bool operator==(const Replica&) const = default;
};

// Where a file's bytes are, and the capability to reach them. Invariant: a view never changes; a
// change makes a new view, so requests under way keep the one that they began with.
struct FileView {
  uint64_t file_id = 0;
  uint32_t stripe_width = 0;
  uint32_t chunk_size = 0;
  uint32_t truncate_epoch = 0;
  // Bit i: a SYNC of object i was answered after a WRITE or COPY of it was answered.
  uint64_t durable_stripes = 0;
  // By stripe index, `places` for each stripe: its replicas, and behind them what is kVacant.
  std::vector<Replica> rows;
  uint32_t places = 1;
  // Its layout is of version 2: it has, or had, several replicas (docs/decisions/0063-mirrors.md).
  bool is_replicated = false;
  // The bytes of a file that lies in its inode's record: none of them is in any object, and zeros
  // follow them up to the file's size. Empty: the file has objects
  // (docs/decisions/0037-inline-data.md).
  std::string inline_bytes;
  std::array<std::byte, sizeof(Capability)> capability{};

  uint64_t session() const noexcept {
    uint64_t session;
    std::memcpy(&session, capability.data() + sizeof(uint64_t), sizeof(session));
    return session;
  }
  bool is_durable(uint32_t stripe_index) const noexcept {
    return (durable_stripes >> stripe_index & 1) != 0;
  }
  // At least one.
  std::span<const Replica> replicas(uint32_t stripe_index) const noexcept {
    const std::span all = std::span(rows).subspan(size_t{stripe_index} * places, places);
    size_t count = 1;
    while (count < all.size() && all[count].target != kVacant) ++count;
    return all.first(count);
  }
  const Replica& first_replica(uint32_t stripe_index) const noexcept {
    return rows[size_t{stripe_index} * places];
  }
  bool is_mirrored(uint32_t stripe_index) const noexcept {
    return places > 1 && rows[size_t{stripe_index} * places + 1].target != kVacant;
  }
  bool has(uint32_t stripe_index, const Replica& replica) const noexcept {
    return stripe_index < stripe_width && std::ranges::count(replicas(stripe_index), replica) != 0;
  }

  static constexpr uint32_t kVacant = 0;  // no target
};
using FileViewPtr = std::shared_ptr<const FileView>;

// The place, of so many replicas, that a read asks first when nothing else decides, and those that
// it asks `step` places later. What is fetched ahead follows the same order (read_replica.h,
// prefetch/server_caches.h).
constexpr uint32_t usual_place(uint64_t file_id, size_t replicas, size_t step = 0) noexcept {
  return static_cast<uint32_t>(((file_id * 0x9e3779b97f4a7c15 >> 33) + step) % replicas);
}

// What it means for a read, copy or seek that an object does not exist: if a SYNC made its stripe
// durable once, it is lost (EIO), else it is a hole (docs/INTERFACES.md, section 1). No other place
// decides this.
inline bool must_exist(const FileView& view, uint32_t stripe_index) noexcept {
  return view.is_durable(stripe_index);
}

// Returns nullopt if the layout or the capability is malformed, or if they name different file ids.
std::optional<FileView> decode_view(std::span<const std::byte> layout,
                                    std::span<const std::byte> capability);

// The stamp names the bytes of a file, and no other bytes of it ever have the same stamp. It is
// never 0. It includes time and size, because a version may come again if a client and the
// metaserver end together before the version was durable. It does not include where the bytes are
// (targets, truncate epoch), since bytes may move without a change. Whoever changes the bytes
// raises the version; after a writer was lost, the metaserver does (metaserver/lost_writes.py).
uint64_t stamp_of(const Attributes& attributes, const FileView& view) noexcept;

// The part of a file extent inside one chunk, and its place in the object.
struct Span {
  uint64_t begin = 0;  // file offset
  uint32_t length = 0;
  uint64_t chunk = 0;
  uint32_t stripe_index = 0;
  uint64_t object_offset = 0;
};

// Bytes of the file below this offset can be stored in any case. Those behind it may be a hole,
// which needs no object.
constexpr uint64_t storable_end(const FileView& view) noexcept {
  return limits::kObjectBytesMax / view.chunk_size * view.chunk_size * view.stripe_width +
         limits::kObjectBytesMax % view.chunk_size;
}

// The first span of [begin, end). It ends at the end of its chunk at the latest.
Span first_span(const FileView& view, uint64_t begin, uint64_t end) noexcept;

}  // namespace braidfs::client
