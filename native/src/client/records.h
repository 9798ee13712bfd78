// The packed records that Python hands over (docs/INTERFACES.md, section 1), which are decoded and
// checked here, and the arithmetic of striping. Pure functions and plain values, ANY THREAD.
#pragma once
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

// Where a file's bytes are, and the capability to reach them. Invariant: a view never changes; a
// change makes a new view, so requests under way keep the one that they began with.
struct FileView {
  uint64_t file_id = 0;
  uint32_t stripe_width = 0;
  uint32_t chunk_size = 0;
  uint32_t truncate_epoch = 0;
  // Bit i: a SYNC of object i was answered after a WRITE or COPY of it was answered.
  uint64_t durable_stripes = 0;
  std::vector<uint32_t> targets;  // by stripe index
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
};
using FileViewPtr = std::shared_ptr<const FileView>;

// What it means for a read, copy or seek that an object does not exist: if a SYNC made its stripe
// durable once, it is lost (EIO), else it is a hole (docs/INTERFACES.md, section 1). No other place
// decides this.
inline bool must_exist(const FileView& view, uint32_t stripe_index) noexcept {
  return view.is_durable(stripe_index);
}

// Returns nullopt if the layout or the capability is malformed, if they name different file ids, or
// if there is to be more than one replica (nothing writes more today).
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
