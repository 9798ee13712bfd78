// The 80-byte frame header; the same struct is fscommon/wire/header.py, golden bytes between them
// are in tests/wire. Little endian only (static_assert below). Pure: no I/O, any thread.
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
};

inline constexpr uint32_t kFrameMagic = 0x44495242;  // "BRID"
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr uint16_t kFlagReply = 0x1;
inline constexpr uint16_t kFlagSums = 0x2;
inline constexpr uint16_t kFlagCapability = 0x4;
inline constexpr uint16_t kFlagReplay = 0x8;
inline constexpr uint16_t kFlagOneway = 0x10;
inline constexpr uint16_t kFlagMustExist =
    0x20;  // a missing object is kNoObject: no zeros, and none is made
inline constexpr uint16_t kFlagSole = 0x40;  // metadata replies only
inline constexpr uint16_t kFlagRaw =
    0x80;  // READ: who asks checks whole blocks, the server need not
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
  uint64_t offset = 0;  // in the object; in replies of data ops: the target's incarnation
  uint32_t length = 0;
  uint32_t payload_length = 0;
  uint32_t body_length = 0;
  uint32_t epoch = 0;  // truncate epoch of the object that the sender knows
  uint16_t status = 0;
  uint16_t reserved = 0;
  uint32_t map_epoch = 0;  // metadata replies; of no meaning in data requests
  uint64_t body_checksum = 0;
  uint64_t header_checksum = 0;
};
static_assert(sizeof(FrameHeader) == 80 && std::is_trivially_copyable_v<FrameHeader>);

inline constexpr size_t kHeaderSize = sizeof(FrameHeader);

// A capability as it travels (docs/INTERFACES.md); the MAC is HMAC-SHA256 cut to 16 bytes.
struct Capability {
  uint64_t file_id = 0;
  uint64_t session = 0;
  uint32_t rights = 0;        // bit 0 read, bit 1 write
  uint32_t epoch = 0;         // of the cluster map when it was made
  uint64_t ino = 0;           // for logs
  uint16_t stripe_width = 0;  // 0: made before these fields, of any object and epoch
  uint16_t reserved = 0;
  uint32_t truncate_epoch = 0;
  uint64_t target_marks = 0;  // which target has which stripe (target_mark_width)
  uint8_t mac[16] = {};
};
static_assert(sizeof(Capability) == 64);
// Of target_marks each stripe has so many bits, the first stripe the lowest ones: the upper bits of
// its target times kTargetMarkFactor. Of one or two stripes they are the target itself, of more a
// share of it.
inline constexpr uint32_t kTargetMarkFactor = 0x9e3779b1;
constexpr uint32_t target_mark_width(uint32_t stripe_width) noexcept {
  return stripe_width <= 2 ? 32 : 64 / stripe_width;
}
constexpr uint32_t target_mark(uint32_t target, uint32_t stripe_width) noexcept {
  return (target * kTargetMarkFactor) >> (32 - target_mark_width(stripe_width));
}
// What a COPY reads, behind the capability of the object that it writes; a capability of the file
// that it reads follows. Offsets are whole blocks.
struct CopySource {
  uint64_t file_id = 0;
  uint64_t offset = 0;  // in the object
  uint32_t stripe_index = 0;
  uint32_t target = 0;
  uint32_t flags = 0;      // kCopyMustExist
  uint32_t epoch_end = 0;  // the truncate epoch that its reader knows of, and 1; 0: not stated
};
static_assert(sizeof(CopySource) == 32);
inline constexpr uint32_t kCopyMustExist = 1;  // an object that is not there is no hole

// One of those that a DELETE_ALL names in its body; the header's length says how many.
struct ObjectName {
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ObjectName) == 16);

// An object that a FETCH names in its body, of which so many bytes are going to be read; the
// header's length says how many there are.
struct FetchedObject {
  Capability capability;
  uint32_t stripe_index = 0;
  uint32_t length = 0;  // 1 to kFetchLengthMax, from the object's beginning
};
static_assert(sizeof(FetchedObject) == 72);

inline constexpr uint32_t kRightRead = 1;
inline constexpr uint32_t kRightWrite = 2;

uint64_t xxh3(std::span<const std::byte> bytes) noexcept;

// Fills header_checksum.
void seal(FrameHeader& header) noexcept;

// Why decode_header refused; kOk when it did not.
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

// raw must hold at least kHeaderSize bytes.
DecodedHeader decode_header(std::span<const std::byte> raw) noexcept;

// Number of blocks that [offset, offset+length) touches; each has one u64 in a sums list.
constexpr uint32_t blocks_touched(uint64_t offset, uint32_t length) noexcept {
  if (length == 0) return 0;
  const uint64_t first = offset / limits::kBlockSize;
  const uint64_t last = (offset + length - 1) / limits::kBlockSize;
  return static_cast<uint32_t>(last - first + 1);
}

// Writes one XXH3-64 per block touched (of the part of the block that is inside the range).
// sums.size() must be blocks_touched(offset, payload.size()).
void hash_blocks(uint64_t offset, std::span<const std::byte> payload,
                 std::span<uint64_t> sums) noexcept;

// Index of the first block whose hash differs, or nullopt when all agree.
std::optional<uint32_t> first_mismatch(uint64_t offset, std::span<const std::byte> payload,
                                       std::span<const uint64_t> sums) noexcept;

}  // namespace braidfs
