// What a target looks like on disk: geometry of object files, record pages, superblock, log
// entries. Pure: structs, their seals and nothing else; no I/O, any thread. Everything read from
// disk may be damaged: decode functions check the seal, then every field that is used as an index.
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

// A page says of other groups which have pages, so that a page that is gone differs from one that
// never was: group 0 of groups 1 to 255 and of each 256th and 65536th one, those of the 255 or 255
// * 256 that follow them.
struct ChildMap {
  std::array<std::array<uint64_t, 4>, 3> written{};  // a page has been written, by level and index
  std::array<std::array<uint64_t, 4>, 3> twice{};    // more than once: both places have one
  bool operator==(const ChildMap&) const = default;
};

// Where a group other than 0 stands in the map of which other one.
struct ChildPlace {
  uint32_t parent = 0;
  uint32_t level = 0;
  uint32_t index = 0;
};
constexpr ChildPlace child_place(uint32_t group) noexcept {
  const uint32_t level = (group & 0xff) != 0 ? 0 : (group & 0xffff) != 0 ? 1 : 2;
  return {group & ~(0xffu << (8 * level)), level, (group >> (8 * level)) & 0xff};
}
constexpr bool in_map(const std::array<std::array<uint64_t, 4>, 3>& bits,
                      ChildPlace place) noexcept {
  return (bits[place.level][place.index / 64] >> (place.index % 64) & 1) != 0;
}
// Groups whose maps may name `group` or later ones, but for those that may have none of both.
constexpr std::array<uint32_t, 3> ancestors_of(uint32_t group) noexcept {
  return {group & ~0xffu, group & ~0xffffu, 0};
}
// The first child at or behind `group`; kGroupCountMax: none.
uint32_t next_in_map(const ChildMap& map, uint32_t parent, uint32_t group) noexcept;
// Takes out all children from `group` on.
void cut_map(ChildMap& map, uint32_t parent, uint32_t group) noexcept;

inline constexpr uint8_t kPageMapped =
    1;  // group 0: the object's maps name every page that was written
inline constexpr uint8_t kPageLost =
    2;  // something of this group (group 0: of the object) is known to be lost

struct RecordPage {
  uint32_t magic = 0;
  uint16_t format = 0;
  uint8_t slot = 0;
  uint8_t flags = 0;  // 0 in pages of programs that knew none
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t group = 0;
  uint32_t generation = 0;        // the higher of the two places wins
  uint32_t epoch = 0;             // truncate epoch; true in group 0
  uint64_t object_length = 0;     // true in group 0
  uint64_t applied_sequence = 0;  // log entries up to this one are in the page
  uint64_t checksum = 0;          // of the whole page with this field zero
  ChildMap children{};
  // The first log entry that the checkpoint which wrote this page leaves: when the log begins there
  // or later the checkpoint was finished. 0: an older program wrote this.
  uint64_t log_start = 0;
  std::array<std::byte, 1024 - 64 - sizeof(ChildMap)> padding{};
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
  uint64_t objects = 0;        // true only when clean
  uint64_t used_bytes = 0;     // true only when clean
  uint64_t next_sequence = 0;  // of the log; true only when clean; 0: an older program wrote this
  std::array<std::byte, 4096 - 136> padding{};
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
  uint64_t object_length = 0;    // after the entry
  uint64_t value = 0;            // COMMIT: committed up to; TRUNCATE: length; PUNCH: first block
  uint64_t value_end = 0;        // PUNCH: end block
  uint32_t base_generation = 0;  // of group 0's page on disk when it was appended
  // To the object's entry before this one (its sequence is this one's less distance), so that a
  // missing one is noticed; at most 2^32 - 1. 0: an older program wrote this. Of no meaning in
  // COMMIT and DELETE.
  uint32_t distance = 0;
  uint64_t checksum = 0;  // of header (this field zero) and body, with the segment's key
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
  std::span<const uint64_t> sums;    // of all runs, in order
  std::span<const std::byte> bytes;  // blocks of the REDO runs, in order
  size_t length = 0;                 // on disk
  bool sealed = false;               // all but the REDO bytes is as it was written
  bool whole = false;                // and these, too
};

// Header, runs and sums as one sealed piece; REDO bytes follow it on disk.
void encode_entry(EntryHeader header, std::span<const EntryRun> runs,
                  std::span<const uint64_t> sums, uint64_t key, std::vector<std::byte>& encoded);
// False: no whole valid entry begins at raw (8-byte aligned); view.sealed tells if only REDO bytes
// are to blame. View points into raw.
bool decode_entry(std::span<const std::byte> raw, uint64_t key, EntryView& view) noexcept;

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
// Binds entries to their segment: bytes of a user, or of another segment, never look like an entry
// of this one.
uint64_t segment_key(const Uuid& uuid, uint64_t number) noexcept;
void seal(SegmentHeader& header) noexcept;
enum class SegmentState : uint8_t { kDamaged, kValid, kValidOld };  // old: entries have no key
SegmentState check(const SegmentHeader& header, uint64_t number, const Uuid& uuid) noexcept;

// What a completed sync of the log promised; one record of the file beside the segment for each
// sync, written after it and before anybody is answered. No sync waits for it: it is what tells a
// torn end from a damaged one while the host lives, and mostly afterwards.
struct Promise {
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t deleted = 0;   // 1: the object is gone
  uint64_t sequence = 0;  // of its last entry that is durable
};
static_assert(sizeof(Promise) == 24);

struct PromiseHeader {
  uint32_t magic = 0;
  uint32_t count = 0;
  uint64_t durable_sequence = 0;  // the whole log up to it
  uint64_t checksum = 0;  // of header (this field zero) and promises, with the segment's key
};
static_assert(sizeof(PromiseHeader) == 24);

void encode_promises(uint64_t durable_sequence, std::span<const Promise> promises, uint64_t key,
                     std::vector<std::byte>& encoded);
// Length of the record that begins at raw; 0: none.
size_t decode_promises(std::span<const std::byte> raw, uint64_t key, PromiseHeader& header,
                       std::span<const Promise>& promises) noexcept;

// "objects/XX": 256 directories made when the target is created.
std::string object_directory(ObjectId object);
std::string object_path(ObjectId object);
// False: the name of no object file.
bool parse_object_name(std::string_view name, ObjectId& object) noexcept;

uint64_t zero_block_sum() noexcept;

}  // namespace braidfs::store
