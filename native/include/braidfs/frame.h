// The 80-byte frame header, the records that travel in bodies, and the checksums of a frame.
//
// fscommon/wire/header.py defines the same header; tests/wire holds the golden bytes that compare
// the two. Little endian only (static_assert below). Pure, no I/O: ANY THREAD.
//
// Not here: which frames are sent when (net/stream.h, client/, server/). docs/INTERFACES.md has the
// layout of every message.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "braidfs/limits.h"
#include "braidfs/status.h"

namespace braidfs {

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

enum class Op : uint8_t {
  kPing = 3,
  kRead = 16,
  kWrite = 17,
  kSync = 18,
  kTruncate = 19,
  kPunch = 20,
  kStat = 21,
  kDelete = 22,
  kFence = 23,
  kSeek = 24,
  kCopy = 25,
  kDeleteAll = 26,
  kFetch = 27,
  kRaiseEpoch = 28,
  kDropNames = 29,
};

// In a SYNC of the metaserver: every object of the target. No file has this id.
inline constexpr uint64_t kEveryFile = 0;

inline constexpr uint32_t kFrameMagic = 0x44495242;  // "BRID" in little endian
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr uint16_t kFlagReply = 0x1;
inline constexpr uint16_t kFlagSums = 0x2;
inline constexpr uint16_t kFlagCapability = 0x4;
inline constexpr uint16_t kFlagReplay = 0x8;
inline constexpr uint16_t kFlagOneway = 0x10;
// A missing object is answered with kNoObject: a READ returns no zeros, a WRITE creates no object.
inline constexpr uint16_t kFlagMustExist = 0x20;
inline constexpr uint16_t kFlagSole = 0x40;  // only in replies of the metaserver
// READ: the client checks whole blocks against their checksums, so the server need not.
inline constexpr uint16_t kFlagRaw = 0x80;
inline constexpr uint16_t kFlagsKnown = 0xff;

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint8_t version = kFrameVersion;
  uint8_t op = 0;
  uint16_t flags = 0;
  uint64_t request_id = 0;
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t target = 0;
  uint64_t offset = 0;  // within the object; in replies of data ops: the target's incarnation
  uint32_t length = 0;
  uint32_t payload_length = 0;
  uint32_t body_length = 0;
  // The object's truncate epoch, as the sender knows it.
  uint32_t epoch = 0;
  uint16_t status = 0;
  uint16_t reserved = 0;
  uint32_t map_epoch = 0;  // only in replies of the metaserver; without meaning in data requests
  uint64_t body_checksum = 0;
  uint64_t header_checksum = 0;
};
static_assert(sizeof(FrameHeader) == 80 && std::is_trivially_copyable_v<FrameHeader>);

inline constexpr size_t kHeaderSize = sizeof(FrameHeader);

// A capability as it travels (docs/INTERFACES.md). The MAC is HMAC-SHA256, cut to 16 bytes.
struct Capability {
  uint64_t file_id = 0;
  uint64_t session = 0;
  uint32_t rights = 0;  // bit 0 read, bit 1 write
  uint32_t epoch = 0;   // epoch of the cluster map when it was made
  uint64_t ino = 0;     // for log lines only
  // 0: the capability was made before the fields below existed; it holds for any stripe and epoch.
  uint16_t stripe_width = 0;
  // Places for replicas of each stripe. 0: one, and its object has generation 0.
  uint16_t replica_places = 0;
  uint32_t truncate_epoch = 0;
  // A mark per place that says which target holds the replica (target_mark()).
  uint64_t target_marks = 0;
  uint8_t mac[16] = {};
};
static_assert(sizeof(Capability) == 64);
// The marks of all places, of each stripe's replicas in turn, share the 64 bits of target_marks:
// target_mark_width() bits for each, the first one in the lowest bits. A mark is the upper bits of
// (target * kTargetMarkFactor). With one or two places the mark identifies the target exactly; with
// more of them several targets share one mark, and with more than 64 there are no marks.
inline constexpr uint32_t kTargetMarkFactor = 0x9e3779b1;
constexpr uint32_t target_mark_width(uint32_t places) noexcept {
  return places <= 2 ? 32 : 64 / places;
}
constexpr uint64_t target_mark(uint32_t target, uint32_t places) noexcept {
  return uint64_t{target * kTargetMarkFactor} >> (32 - target_mark_width(places));
}

// An object's number, as it is in the field stripe_index of frames and names: its stripe index, and
// above it the generation of its replica.
constexpr uint32_t object_number(uint32_t stripe_index, uint32_t generation) noexcept {
  return stripe_index | generation << limits::kGenerationShift;
}
constexpr uint32_t stripe_of(uint32_t object_number) noexcept {
  return object_number & ((1u << limits::kGenerationShift) - 1);
}
constexpr uint32_t generation_of(uint32_t object_number) noexcept {
  return object_number >> limits::kGenerationShift;
}

// The source that a COPY reads. It stands in the body behind the capability of the object that is
// written; a capability of the file that is read follows it. Offsets are whole blocks.
struct CopySource {
  uint64_t file_id = 0;
  uint64_t offset = 0;  // within the object
  uint32_t stripe_index = 0;
  uint32_t target = 0;
  uint32_t flags = 0;  // kCopyMustExist or 0
  // The truncate epoch that the reader knows, plus 1. 0: not stated.
  uint32_t epoch_end = 0;
};
static_assert(sizeof(CopySource) == 32);
// A missing source object is an error, not a hole.
inline constexpr uint32_t kCopyMustExist = 1;

// One of the objects in the body of a DELETE_ALL or DROP_NAMES. The header's length says how many
// there are.
struct ObjectName {
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ObjectName) == 16);

// One of the objects in the body of a FETCH, and how many of its bytes the client is going to read.
// The header's length says how many objects there are.
struct FetchedObject {
  Capability capability;
  uint32_t stripe_index = 0;
  uint32_t length = 0;  // 1 to kFetchLengthMax, from the beginning of the object
};
static_assert(sizeof(FetchedObject) == 72);

inline constexpr uint32_t kRightRead = 1;
inline constexpr uint32_t kRightWrite = 2;

uint64_t xxh3(std::span<const std::byte> bytes) noexcept;

// Computes and sets header_checksum.
void seal(FrameHeader& header) noexcept;

// Why decode_header() refused a header; kOk when it did not.
enum class FrameFault : uint8_t {
  kOk,
  kMagic,
  kVersion,
  kChecksum,
  kFlags,
  kBodyLength,
  kPayloadLength
};

struct DecodedHeader {
  FrameFault fault;
  FrameHeader header;  // meaningful only when fault is kOk
};

// Decodes and checks one header. `raw` must hold at least kHeaderSize bytes.
DecodedHeader decode_header(std::span<const std::byte> raw) noexcept;

constexpr uint64_t round_down_to_block(uint64_t offset) noexcept {
  return offset / limits::kBlockSize * limits::kBlockSize;
}
constexpr uint64_t round_up_to_block(uint64_t offset) noexcept {
  return round_down_to_block(offset + limits::kBlockSize - 1);
}

// Number of blocks that [offset, offset + length) touches. A list of sums has one u64 for each.
constexpr uint32_t blocks_touched(uint64_t offset, uint32_t length) noexcept {
  if (length == 0) return 0;
  const uint64_t first = offset / limits::kBlockSize;
  const uint64_t last = (offset + length - 1) / limits::kBlockSize;
  return static_cast<uint32_t>(last - first + 1);
}

// Writes the XXH3-64 of each touched block: of the part of the block that lies inside the range.
// sums.size() must be blocks_touched(offset, payload.size()).
void hash_blocks(uint64_t offset, std::span<const std::byte> payload,
                 std::span<uint64_t> sums) noexcept;

// Index of the first block whose hash differs from its sum; nullopt when all agree.
std::optional<uint32_t> first_mismatch(uint64_t offset, std::span<const std::byte> payload,
                                       std::span<const uint64_t> sums) noexcept;

}  // namespace braidfs
