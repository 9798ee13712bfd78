#include "braidfs/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/hash.h"

namespace braidfs {

namespace {

constexpr size_t kSealed = offsetof(FrameHeader, header_checksum);
// XXH3 uses no vector instructions up to this length, so the choice of code only matters above it.
constexpr size_t kLong = 240;

uint64_t hash_long(const void* bytes, size_t length) noexcept {
#ifdef BRAIDFS_HAS_AVX2
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return braidfs_xxh3_avx2(bytes, length);
#endif
  return XXH3_64bits(bytes, length);
}

// Calls fn(index, piece) for the part of the payload in each block, until fn returns false.
template <typename Fn>
void for_each_block(uint64_t offset, std::span<const std::byte> payload, Fn fn) {
  uint32_t index = 0;
  while (!payload.empty()) {
    const size_t room = limits::kBlockSize - offset % limits::kBlockSize;
    const size_t length = std::min(room, payload.size());
    if (!fn(index++, payload.first(length))) return;
    payload = payload.subspan(length);
    offset += length;
  }
}

FrameFault check(const FrameHeader& header) noexcept {
  if (header.magic != kFrameMagic) return FrameFault::kMagic;
  if (header.version != kFrameVersion) return FrameFault::kVersion;
  if (XXH3_64bits(&header, kSealed) != header.header_checksum) return FrameFault::kChecksum;
  if ((header.flags & ~kFlagsKnown) != 0 || header.reserved != 0) return FrameFault::kFlags;
  if (header.body_length > limits::kFrameBodyLengthMax) return FrameFault::kBodyLength;
  if (header.payload_length > limits::kFramePayloadLengthMax) return FrameFault::kPayloadLength;
  return FrameFault::kOk;
}

}  // namespace

uint64_t xxh3(std::span<const std::byte> bytes) noexcept {
  return bytes.size() > kLong ? hash_long(bytes.data(), bytes.size())
                              : XXH3_64bits(bytes.data(), bytes.size());
}

void seal(FrameHeader& header) noexcept { header.header_checksum = XXH3_64bits(&header, kSealed); }

DecodedHeader decode_header(std::span<const std::byte> raw) noexcept {
  DecodedHeader decoded{};
  std::memcpy(&decoded.header, raw.data(), kHeaderSize);
  decoded.fault = check(decoded.header);
  return decoded;
}

void hash_blocks(uint64_t offset, std::span<const std::byte> payload,
                 std::span<uint64_t> sums) noexcept {
  for_each_block(offset, payload, [&](uint32_t index, std::span<const std::byte> piece) {
    sums[index] = xxh3(piece);
    return true;
  });
}

std::optional<uint32_t> first_mismatch(uint64_t offset, std::span<const std::byte> payload,
                                       std::span<const uint64_t> sums) noexcept {
  std::optional<uint32_t> wrong;
  for_each_block(offset, payload, [&](uint32_t index, std::span<const std::byte> piece) {
    if (xxh3(piece) == sums[index]) return true;
    wrong = index;
    return false;
  });
  return wrong;
}

}  // namespace braidfs
