// The packed records that Python hands over (docs/INTERFACES.md, section 1), decoded and checked,
// and the arithmetic of striping. Pure: no I/O, no locks, any thread.
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

// Where a file's bytes are and the right to reach them. Immutable: a change makes a new one, so
// that requests in work keep the one they began with.
struct FileView {
  uint64_t file_id = 0;
  uint32_t stripe_width = 0;
  uint32_t chunk_size = 0;
  uint32_t truncate_epoch = 0;
  uint64_t durable_stripes =
      0;  // bit i: a SYNC of that object was answered, after a WRITE or COPY of it was
  std::vector<uint32_t> targets;  // by stripe index
  // What the file begins with; zeros are behind it, and nothing of it is in any object. Empty: it
  // has objects (docs/decisions/0037-inline-data.md).
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

// The one rule of what an object that is not there means to whoever reads, copies or seeks in it:
// of a stripe that was synced once it is lost (EIO), else it is a hole (docs/INTERFACES.md, section
// 1).
inline bool must_exist(const FileView& view, uint32_t stripe_index) noexcept {
  return view.is_durable(stripe_index);
}

// nullopt when the layout or capability is malformed, of two minds about the file id, or asks for
// more than one replica (none is written today).
std::optional<FileView> decode_view(std::span<const std::byte> layout,
                                    std::span<const std::byte> capability);

// Names the bytes of a file, as no other bytes of it are ever named; not 0. Time and size are in it
// because a version may come again, when a client and the metaserver end together before it was
// durable. Where the bytes are (targets, truncate epoch) is not: they may move without being
// others. Who makes them others raises the version, the end of a lost writer too
// (metaserver/lost_writes.py).
uint64_t stamp_of(const Attributes& attributes, const FileView& view) noexcept;

// The part of a file extent inside one chunk, and where its object holds it.
struct Span {
  uint64_t begin = 0;  // file offset
  uint32_t length = 0;
  uint64_t chunk = 0;
  uint32_t stripe_index = 0;
  uint64_t object_offset = 0;
};

// The file's bytes before it can be stored, whatever they are; those behind may be a hole, which
// needs no object.
constexpr uint64_t storable_end(const FileView& view) noexcept {
  return limits::kObjectBytesMax / view.chunk_size * view.chunk_size * view.stripe_width +
         limits::kObjectBytesMax % view.chunk_size;
}

// The span at the beginning of [begin, end): it ends at the chunk's end or earlier.
Span first_span(const FileView& view, uint64_t begin, uint64_t end) noexcept;

}  // namespace braidfs::client
