// What a target looks like on disk: geometry of object files, record pages, superblock, log entries.
// Pure: structs, their seals and nothing else; no I/O, any thread. Everything read from disk may be
// damaged: decode functions check the seal, then every field that is used as an index.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "store/chunk_store.h"

namespace braidfs::store {

inline constexpr uint32_t kBlockSize = limits::kBlockSize;
inline constexpr uint32_t kGroupBlocks = 256;
inline constexpr uint64_t kGroupBytes = uint64_t{kGroupBlocks} * kBlockSize;
inline constexpr uint64_t kPageSize = 4096;
inline constexpr uint64_t kGroupStride = kPageSize + kGroupBytes;
inline constexpr uint64_t kSlotDistance = uint64_t{1} << 43;  // both end below 16 TiB, as ext4 does
inline constexpr uint32_t kGroupCountMax = static_cast<uint32_t>(kSlotDistance / kGroupStride);
inline constexpr uint64_t kObjectBytesMax = uint64_t{kGroupCountMax} * kGroupBytes;
static_assert(kObjectBytesMax == limits::kObjectBytesMax);
inline constexpr uint64_t kBlocksMax = uint64_t{kGroupCountMax} * kGroupBlocks;

// The record page of a group has two places as its blocks have two slots; the two are independent:
// pages are written to both places in turn, so that a torn page never costs the last good one.
constexpr uint64_t page_offset(uint32_t group, uint8_t place) noexcept {
  return group * kGroupStride + place * kSlotDistance;
}
constexpr uint64_t block_offset(uint32_t group, uint8_t slot, uint32_t block) noexcept {
  return group * kGroupStride + kPageSize + slot * kSlotDistance + uint64_t{block} * kBlockSize;
}

struct RecordPage {
  uint32_t magic = 0;
  uint16_t format = 0;
  uint8_t slot = 0;
  uint8_t reserved = 0;
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t group = 0;
  uint32_t generation = 0;  // the higher of the two places wins
  uint32_t epoch = 0;       // truncate epoch; true in group 0
  uint64_t object_length = 0;  // true in group 0
  uint64_t applied_sequence = 0;  // log entries up to this one are in the page
  uint64_t checksum = 0;          // of the whole page with this field zero
  std::array<std::byte, 1024 - 56> padding{};
  std::array<uint64_t, kGroupBlocks> sums{};
  std::array<uint32_t, kGroupBlocks> versions{};  // 0: hole
};
static_assert(sizeof(RecordPage) == kPageSize);

enum class PageState : uint8_t { kEmpty, kValid, kDamaged };
void seal(RecordPage& page) noexcept;
// kEmpty: all zeros, never written or punched.
PageState check(const RecordPage& page, ObjectId object, uint32_t group) noexcept;

struct Superblock {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t clean = 0;
  Uuid cluster{};
  Uuid uuid{};
  uint32_t target = 0;
  uint32_t reserved = 0;
  uint64_t incarnation = 0;
  std::array<char, 40> boot_id{};
  uint64_t objects = 0;     // true only when clean
  uint64_t used_bytes = 0;  // true only when clean
  std::array<std::byte, 4096 - 128> padding{};
  uint64_t checksum = 0;
};
static_assert(sizeof(Superblock) == 4096);
void seal(Superblock& superblock) noexcept;
// Empty when good; else why not, for people.
std::string refusal(const Superblock& superblock, const Uuid& cluster);

enum class EntryKind : uint16_t { kWrite = 1, kRedo, kCommit, kTruncate, kPunch, kDelete };

struct EntryHeader {
  uint32_t magic = 0;
  EntryKind kind = EntryKind::kWrite;
  uint16_t run_count = 0;
  uint32_t body_length = 0;   // runs and sums, under the seal
  uint32_t bytes_length = 0;  // blocks of REDO runs, each under its own sum
  uint64_t sequence = 0;
  uint64_t durable_sequence = 0;  // known to be durable when this was appended
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t epoch = 0;
  uint64_t object_length = 0;  // after the entry
  uint64_t value = 0;          // COMMIT: committed up to; TRUNCATE: length; PUNCH: first block
  uint64_t value_end = 0;      // PUNCH: end block
  uint32_t base_generation = 0;  // of group 0's page on disk when it was appended
  uint32_t reserved = 0;
  uint64_t checksum = 0;  // of header (this field zero) and body
};
static_assert(sizeof(EntryHeader) == 88);

inline constexpr uint8_t kRunRedo = 1;    // bytes are in the entry
inline constexpr uint8_t kRunSwitch = 2;  // the group's live slot becomes `slot`, the rest holes

struct EntryRun {
  uint32_t group = 0;
  uint16_t first = 0;
  uint16_t count = 0;
  uint8_t flags = 0;
  uint8_t slot = 0;
  uint16_t reserved = 0;
  uint32_t base_generation = 0;  // of the group's page on disk: an older one means damage
};
static_assert(sizeof(EntryRun) == 16);

struct EntryView {
  EntryHeader header;
  std::span<const EntryRun> runs;
  std::span<const uint64_t> sums;     // of all runs, in order
  std::span<const std::byte> bytes;   // blocks of the REDO runs, in order
  size_t length = 0;                  // on disk
};

// Header, runs and sums as one sealed piece; REDO bytes follow it on disk.
void encode_entry(EntryHeader header, std::span<const EntryRun> runs,
                  std::span<const uint64_t> sums, std::vector<std::byte>& encoded);
// False: no whole valid entry begins at raw (8-byte aligned). View points into raw.
bool decode_entry(std::span<const std::byte> raw, EntryView& view) noexcept;

inline constexpr uint32_t kEntryMagic = 0x4c415742;  // "BWAL"
inline constexpr size_t kSegmentHeaderSize = 4096;

struct SegmentHeader {
  uint64_t magic = 0;
  uint64_t number = 0;
  uint64_t first_sequence = 0;
  Uuid uuid{};
  uint64_t checksum = 0;
};
static_assert(sizeof(SegmentHeader) == 48);
void seal(SegmentHeader& header) noexcept;
bool valid(const SegmentHeader& header, uint64_t number, const Uuid& uuid) noexcept;

// "objects/XX": 256 directories made when the target is created.
std::string object_directory(ObjectId object);
std::string object_path(ObjectId object);
// False: the name of no object file.
bool parse_object_name(std::string_view name, ObjectId& object) noexcept;

uint64_t zero_block_sum() noexcept;

}  // namespace braidfs::store
