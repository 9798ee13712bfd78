// The content of a cache directory, byte by byte (docs/decisions/0035-local-cache.md). Pure, no
// I/O: ANY THREAD.
//
// A *slice* is the part of a file between two multiples of kSliceBytes. A record is one slice as it
// was read: a head of one block, then the bytes, padded to whole blocks. The head names the slice
// and the stamp of the file's bytes, and holds the XXH3 of each block. A segment's index has one
// entry for each record, in the order of their places. Head and entry each have an XXH3 of their
// own; one that does not match counts as absent.
#pragma once
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::cache {

inline constexpr uint32_t kBlock = limits::kBlockSize;
inline constexpr uint32_t kSliceBytes = 1u << 20;
inline constexpr uint32_t kHeadBytes = kBlock;

struct SliceKey {
  uint64_t ino = 0;
  uint32_t slice = 0;
  bool operator==(const SliceKey&) const = default;
};

template <std::unsigned_integral Number>
constexpr Number padded(Number length) noexcept {
  return (length + kBlock - 1) / kBlock * kBlock;
}
constexpr uint32_t record_bytes(uint32_t length) noexcept { return kHeadBytes + padded(length); }

constexpr uint32_t slice_count(uint64_t size) noexcept {
  return static_cast<uint32_t>((size + kSliceBytes - 1) / kSliceBytes);
}
constexpr uint32_t slice_length(uint64_t size, uint32_t slice) noexcept {
  const uint64_t left = size - uint64_t{slice} * kSliceBytes;
  return left < kSliceBytes ? static_cast<uint32_t>(left) : kSliceBytes;
}

struct RecordHead {
  uint64_t magic;
  uint64_t ino;
  uint64_t stamp;
  uint32_t slice;
  uint32_t length;
  std::array<uint64_t, kSliceBytes / kBlock> sums;
  std::array<uint64_t, 251> zeros;
  uint64_t seal;
};
static_assert(sizeof(RecordHead) == kHeadBytes && std::is_trivially_copyable_v<RecordHead>);

// Makes the head of a record. The parts are the slice's bytes in order, 1 to kSliceBytes together;
// each part except the last one is whole blocks.
void make_head(RecordHead& head, const SliceKey& key, uint64_t stamp,
               std::span<const std::span<const std::byte>> parts) noexcept;
bool is_head_of(const RecordHead& head, const SliceKey& key, uint64_t stamp,
                uint32_t length) noexcept;
// True when the bytes match the head's sums. They begin on a block, and end on one or with the
// slice.
bool are_bytes_of(const RecordHead& head, uint32_t begin,
                  std::span<const std::byte> bytes) noexcept;

struct IndexEntry {
  uint32_t magic;
  uint32_t length;  // of the bytes
  uint64_t ino;
  uint64_t stamp;
  uint32_t slice;
  uint32_t block;  // the segment's block where the head is
  uint64_t seal;
};
static_assert(sizeof(IndexEntry) == 40 && std::has_unique_object_representations_v<IndexEntry>);

struct Placed {
  SliceKey key;
  uint64_t stamp = 0;
  uint32_t length = 0;
  uint32_t block = 0;
};
IndexEntry index_entry(const Placed& placed) noexcept;
// The entries at the beginning of an index that are intact, follow one another, and lie within the
// segment.
std::vector<Placed> read_index(std::span<const std::byte> bytes, uint64_t segment_bytes);

// The first block of the file that identifies a cache directory.
struct Superblock {
  std::array<std::byte, 16> cluster{};
  uint64_t segment_bytes = 0;
};
std::vector<std::byte> encode(const Superblock& superblock);
std::optional<Superblock> decode_superblock(std::span<const std::byte> bytes) noexcept;

}  // namespace braidfs::cache
