// The on-disk layout of a target: geometry of object files, record pages, superblock, log entries.
//
// Pure: structs and their checksums, no I/O. ANY THREAD. Everything that was read from disk may be
// damaged: the decode functions verify the checksum first, then every field that is used as an
// index.
//
// Not here: when pages and entries are written (durable.cpp, checkpoint.cpp, log.cpp).
// docs/INTERFACES.md section 4 describes the format.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "store/requests.h"

namespace braidfs::store {

inline constexpr uint32_t kBlockSize = limits::kBlockSize;
inline constexpr uint32_t kGroupBlocks = 256;
inline constexpr uint64_t kGroupBytes = uint64_t{kGroupBlocks} * kBlockSize;
inline constexpr uint64_t kPageSize = 4096;
inline constexpr uint64_t kGroupStride = kPageSize + kGroupBytes;
// The second slot begins so far behind the first. Both end below 16 TiB, the largest file of ext4.
inline constexpr uint64_t kSlotDistance = uint64_t{1} << 43;
inline constexpr uint32_t kGroupCountMax = static_cast<uint32_t>(kSlotDistance / kGroupStride);
inline constexpr uint64_t kObjectBytesMax = uint64_t{kGroupCountMax} * kGroupBytes;
static_assert(kObjectBytesMax == limits::kObjectBytesMax);
inline constexpr uint64_t kBlocksMax = uint64_t{kGroupCountMax} * kGroupBlocks;

// The record page of a group has two places, as its blocks have two slots. The two are independent:
// pages are written to the two places in turn, so that a torn page never destroys the last good
// one.
constexpr uint64_t page_offset(uint32_t group, uint8_t place) noexcept {
  return group * kGroupStride + place * kSlotDistance;
}
constexpr uint64_t block_offset(uint32_t group, uint8_t slot, uint32_t block) noexcept {
  return group * kGroupStride + kPageSize + slot * kSlotDistance + uint64_t{block} * kBlockSize;
}

// Says which groups below this one have record pages, so that a page that was lost differs from one
// that never existed. Groups form a tree. Group 0 is the root. Level 0 of a map names the 255
// groups that follow a multiple of 256; level 1 names the next 255 multiples of 256 behind a
// multiple of 65536; level 2 names the multiples of 65536, and is in group 0 only.
struct ChildMap {
  // by level and index: the child's page was written
  std::array<std::array<uint64_t, 4>, 3> written{};
  // it was written more than once, so both places hold one
  std::array<std::array<uint64_t, 4>, 3> twice{};
  bool operator==(const ChildMap&) const = default;
};

// Where a group other than 0 stands: in the map of which parent, and at which bit.
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
// The groups whose maps must be read to find `group` and all later groups that have pages. (A later
// group with a map of its own is named in one of these maps.)
constexpr std::array<uint32_t, 3> ancestors_of(uint32_t group) noexcept {
  return {group & ~0xffu, group & ~0xffffu, 0};
}
// The first child at or behind `group`; kGroupCountMax: there is none.
uint32_t next_in_map(const ChildMap& map, uint32_t parent, uint32_t group) noexcept;
// Removes all children from `group` on.
void cut_map(ChildMap& map, uint32_t parent, uint32_t group) noexcept;

// In group 0: the object's maps name every page that was written.
inline constexpr uint8_t kPageMapped = 1;
// Something of this group (in group 0: of the object) is known to be lost.
inline constexpr uint8_t kPageLost = 2;

struct RecordPage {
  uint32_t magic = 0;
  uint16_t format = 0;
  uint8_t slot = 0;
  uint8_t flags = 0;  // 0 in pages of programs that had no flags
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t group = 0;
  uint32_t generation = 0;        // of the two places, the page with the higher one is valid
  uint32_t epoch = 0;             // truncate epoch; valid in group 0
  uint64_t object_length = 0;     // valid in group 0
  uint64_t applied_sequence = 0;  // log entries up to this one are included in the page
  uint64_t checksum = 0;          // of the whole page, with this field zero
  ChildMap children{};
  // The first log entry that was left by the checkpoint that wrote this page. When the log begins
  // there or later, that checkpoint was finished. 0: an older program wrote the page.
  uint64_t log_start = 0;
  std::array<std::byte, 1024 - 64 - sizeof(ChildMap)> padding{};
  std::array<uint64_t, kGroupBlocks> sums{};
  std::array<uint32_t, kGroupBlocks> versions{};  // 0: hole
};
static_assert(sizeof(RecordPage) == kPageSize);

enum class PageState : uint8_t { kEmpty, kValid, kDamaged };
void seal(RecordPage& page) noexcept;
// kEmpty: the page is all zeros, so it was never written or it was punched.
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
  uint64_t objects = 0;     // valid only when clean
  uint64_t used_bytes = 0;  // valid only when clean
  // The log's next sequence; valid only when clean. 0: an older program wrote this.
  uint64_t next_sequence = 0;
  std::array<std::byte, 4096 - 136> padding{};
  uint64_t checksum = 0;
};
static_assert(sizeof(Superblock) == 4096);
void seal(Superblock& superblock) noexcept;
// Empty when the superblock is good; otherwise a sentence for people that says why it is refused.
std::string refusal(const Superblock& superblock, const Uuid& cluster);

enum class EntryKind : uint16_t { kWrite = 1, kRedo, kCommit, kTruncate, kPunch, kDelete };

struct EntryHeader {
  uint32_t magic = 0;
  EntryKind kind = EntryKind::kWrite;
  uint16_t run_count = 0;
  uint32_t body_length = 0;  // length of runs and sums, which the checksum covers
  // Length of the blocks of REDO runs; each block has its own sum.
  uint32_t bytes_length = 0;
  uint64_t sequence = 0;
  uint64_t durable_sequence = 0;  // known to be durable when the entry was appended
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t epoch = 0;
  uint64_t object_length = 0;  // after the entry was applied
  uint64_t value = 0;          // COMMIT: committed up to here; TRUNCATE: length; PUNCH: first block
  uint64_t value_end = 0;      // PUNCH: end block
  // Generation of group 0's page on disk when the entry was appended.
  uint32_t base_generation = 0;
  // Distance to the object's entry before this one: the sequence of that entry is this one's minus
  // distance. It shows when an entry is missing. At most 2^32 - 1. 0: an older program wrote the
  // entry. Without meaning in COMMIT and DELETE.
  uint32_t distance = 0;
  uint64_t checksum = 0;  // of header (this field zero) and body, mixed with the segment's key
};
static_assert(sizeof(EntryHeader) == 88);

inline constexpr uint8_t kRunRedo = 1;  // the blocks' bytes are in the entry
// The group's live slot becomes `slot`; blocks outside the run become holes.
inline constexpr uint8_t kRunSwitch = 2;

struct EntryRun {
  uint32_t group = 0;
  uint16_t first = 0;
  uint16_t count = 0;
  uint8_t flags = 0;
  uint8_t slot = 0;
  uint16_t reserved = 0;
  // Generation of the group's page on disk. An older page found at recovery means damage.
  uint32_t base_generation = 0;
};
static_assert(sizeof(EntryRun) == 16);

struct EntryView {
  EntryHeader header;
  std::span<const EntryRun> runs;
  std::span<const uint64_t> sums;    // of the blocks of all runs, in order
  std::span<const std::byte> bytes;  // blocks of the REDO runs, in order
  size_t length = 0;                 // bytes on disk
  bool sealed = false;               // the checksum is right: all but the REDO bytes is as written
  bool whole = false;                // the REDO bytes are as written, too
};

// Encodes header, runs and sums as one piece under a checksum. The REDO bytes follow it on disk.
void encode_entry(EntryHeader header, std::span<const EntryRun> runs,
                  std::span<const uint64_t> sums, uint64_t key, std::vector<std::byte>& encoded);
// Decodes the entry at raw, which is aligned to 8 bytes. False: no whole, valid entry begins there;
// view.sealed then says whether only its REDO bytes are damaged. The view points into raw.
bool decode_entry(std::span<const std::byte> raw, uint64_t key, EntryView& view) noexcept;

inline constexpr uint32_t kEntryMagic = 0x4c415742;  // "BWAL" in little endian
inline constexpr size_t kSegmentHeaderSize = 4096;

struct SegmentHeader {
  uint64_t magic = 0;
  uint64_t number = 0;
  uint64_t first_sequence = 0;
  Uuid uuid{};
  uint64_t checksum = 0;
};
static_assert(sizeof(SegmentHeader) == 48);
// Binds entries to their segment: a user's bytes, or an entry of another segment, never look like
// an entry of this one.
uint64_t segment_key(const Uuid& uuid, uint64_t number) noexcept;
void seal(SegmentHeader& header) noexcept;
// kValidOld: its entries have no key
enum class SegmentState : uint8_t { kDamaged, kValid, kValidOld };
SegmentState check(const SegmentHeader& header, uint64_t number, const Uuid& uuid) noexcept;

// What a completed sync of the log has promised. Each sync appends one record of promises to the
// file beside the segment, after the sync and before anybody is answered. Nothing waits for that
// file: it distinguishes a torn end of the log from a damaged one, always while the host lives and
// mostly after a crash of the host.
struct Promise {
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t deleted = 0;   // 1: the object was deleted
  uint64_t sequence = 0;  // the last entry of the object that is durable
};
static_assert(sizeof(Promise) == 24);

struct PromiseHeader {
  uint32_t magic = 0;
  uint32_t count = 0;
  uint64_t durable_sequence = 0;  // the whole log is durable up to it
  uint64_t checksum = 0;  // of header (this field zero) and promises, mixed with the segment's key
};
static_assert(sizeof(PromiseHeader) == 24);

void encode_promises(uint64_t durable_sequence, std::span<const Promise> promises, uint64_t key,
                     std::vector<std::byte>& encoded);
// Length of the record that begins at raw; 0: there is none.
size_t decode_promises(std::span<const std::byte> raw, uint64_t key, PromiseHeader& header,
                       std::span<const Promise>& promises) noexcept;

// "objects/XX", one of 256 directories made when the target is created.
std::string object_directory(ObjectId object);
std::string object_path(ObjectId object);
// False: the name is not that of an object file.
bool parse_object_name(std::string_view name, ObjectId& object) noexcept;

uint64_t zero_block_sum() noexcept;

}  // namespace braidfs::store
