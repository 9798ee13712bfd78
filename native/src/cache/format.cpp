#include "cache/format.h"

#include <algorithm>
#include <cstring>

namespace braidfs::cache {

namespace {

constexpr uint64_t kHeadMagic = 0x3165'6863'6163'7242;   // "Brcache1"
constexpr uint32_t kEntryMagic = 0x3143'4942;            // "BIC1"
constexpr uint64_t kSuperMagic = 0x3168'6361'6344'5242;  // "BRDcach1"
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;

template <typename T>
uint64_t seal_of(const T& sealed) noexcept {
  return xxh3(std::as_bytes(std::span(&sealed, 1)).first(offsetof(T, seal)));
}

struct SealedSuperblock {
  uint64_t magic;
  std::array<std::byte, 16> cluster;
  uint64_t segment_bytes;
  uint64_t seal;
};
static_assert(sizeof(SealedSuperblock) == 40);

}  // namespace

void make_head(RecordHead& head, const SliceKey& key, uint64_t stamp,
               std::span<const std::span<const std::byte>> parts) noexcept {
  std::memset(&head, 0, sizeof head);
  head.magic = kHeadMagic;
  head.ino = key.ino;
  head.stamp = stamp;
  head.slice = key.slice;
  for (const auto part : parts) {
    const auto count = blocks_touched(head.length, static_cast<uint32_t>(part.size()));
    hash_blocks(head.length, part, std::span(head.sums).subspan(head.length / kBlock, count));
    head.length += static_cast<uint32_t>(part.size());
  }
  head.seal = seal_of(head);
}

bool is_head_of(const RecordHead& head, const SliceKey& key, uint64_t stamp,
                uint32_t length) noexcept {
  return head.magic == kHeadMagic && head.ino == key.ino && head.slice == key.slice &&
         head.stamp == stamp && head.length == length && length <= kSliceBytes &&
         head.seal == seal_of(head);
}

bool are_bytes_of(const RecordHead& head, uint32_t begin,
                  std::span<const std::byte> bytes) noexcept {
  if (begin % kBlock != 0 || uint64_t{begin} + bytes.size() > head.length) return false;
  const auto count = blocks_touched(begin, static_cast<uint32_t>(bytes.size()));
  const auto sums = std::span(head.sums).subspan(begin / kBlock, count);
  return !first_mismatch(begin, bytes, sums);
}

IndexEntry index_entry(const Placed& placed) noexcept {
  IndexEntry entry{.magic = kEntryMagic,
                   .length = placed.length,
                   .ino = placed.key.ino,
                   .stamp = placed.stamp,
                   .slice = placed.key.slice,
                   .block = placed.block,
                   .seal = 0};
  entry.seal = seal_of(entry);
  return entry;
}

std::vector<Placed> read_index(std::span<const std::byte> bytes, uint64_t segment_bytes) {
  std::vector<Placed> found;
  uint64_t end = 0;  // of the record before
  for (; bytes.size() >= sizeof(IndexEntry); bytes = bytes.subspan(sizeof(IndexEntry))) {
    IndexEntry entry;
    std::memcpy(&entry, bytes.data(), sizeof entry);
    const uint64_t begin = uint64_t{entry.block} * kBlock;
    if (entry.magic != kEntryMagic || entry.seal != seal_of(entry) || entry.length == 0 ||
        entry.length > kSliceBytes || begin < end ||
        begin + record_bytes(entry.length) > segment_bytes) {
      break;
    }
    end = begin + record_bytes(entry.length);
    found.push_back({{entry.ino, entry.slice}, entry.stamp, entry.length, entry.block});
  }
  return found;
}

std::vector<std::byte> encode(const Superblock& superblock) {
  SealedSuperblock sealed{kSuperMagic, superblock.cluster, superblock.segment_bytes, 0};
  sealed.seal = seal_of(sealed);
  const auto bytes = std::as_bytes(std::span(&sealed, 1));
  return {bytes.begin(), bytes.end()};
}

std::optional<Superblock> decode_superblock(std::span<const std::byte> bytes) noexcept {
  SealedSuperblock sealed;
  if (bytes.size() != sizeof sealed) return std::nullopt;
  std::memcpy(&sealed, bytes.data(), sizeof sealed);
  if (sealed.magic != kSuperMagic || sealed.seal != seal_of(sealed)) return std::nullopt;
  if (sealed.segment_bytes < record_bytes(kSliceBytes) || sealed.segment_bytes > kSegmentBytesMax ||
      sealed.segment_bytes % kBlock != 0) {
    return std::nullopt;
  }
  return Superblock{sealed.cluster, sealed.segment_bytes};
}

}  // namespace braidfs::cache
