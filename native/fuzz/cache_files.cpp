// Fuzzes the reading of a cache directory: superblock, index and record heads. Inputs are raw, or
// get a correct checksum, so that the code behind the checksum is reached as well. Nothing that was
// read may name a place that does not exist.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "cache/format.h"

namespace {

using namespace braidfs::cache;

constexpr uint64_t kSegmentBytes = 8u << 20;

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename T>
T taken(std::span<const std::byte>& rest) {
  T value{};
  const size_t count = std::min(rest.size(), sizeof(T));
  std::memcpy(&value, rest.data(), count);
  rest = rest.subspan(count);
  return value;
}

void check_index(std::span<const std::byte> bytes) {
  uint64_t end = 0;
  for (const Placed& placed : read_index(bytes, kSegmentBytes)) {
    const uint64_t begin = uint64_t{placed.block} * kBlock;
    require(placed.length > 0 && placed.length <= kSliceBytes && begin >= end);
    end = begin + record_bytes(placed.length);
    require(end <= kSegmentBytes);
  }
}

void check_head(std::span<const std::byte> rest, bool sealed) {
  const auto begin = taken<uint32_t>(rest);
  const auto length = taken<uint32_t>(rest);
  auto head = taken<RecordHead>(rest);
  if (sealed)
    head.seal = braidfs::xxh3(std::as_bytes(std::span(&head, 1)).first(offsetof(RecordHead, seal)));
  if (!is_head_of(head, {head.ino, head.slice}, head.stamp, length)) return;
  require(length <= kSliceBytes);
  std::vector<std::byte> bytes(std::min<size_t>(rest.size(), 3 * kBlock));
  std::copy_n(rest.begin(), bytes.size(), bytes.begin());
  (void)are_bytes_of(head, begin, bytes);
}

std::vector<std::byte> sealed_index(std::span<const std::byte> rest) {
  std::vector<std::byte> bytes;
  while (rest.size() >= 8) {
    const auto length = taken<uint32_t>(rest);
    const auto block = taken<uint32_t>(rest);
    const IndexEntry entry = index_entry({{1, 2}, 3, length % (kSliceBytes + 2), block % 4096});
    const auto raw = std::as_bytes(std::span(&entry, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* begin, size_t size) {
  std::span<const std::byte> rest = std::as_bytes(std::span(begin, size));
  if (rest.empty()) return 0;
  const auto kind = taken<uint8_t>(rest);
  switch (kind % 5) {
    case 0:
      check_index(rest);
      break;
    case 1:
      check_index(sealed_index(rest));
      break;
    case 2:
      check_head(rest, false);
      break;
    case 3:
      check_head(rest, true);
      break;
    default:
      if (const auto known = decode_superblock(rest))
        require(known->segment_bytes >= record_bytes(kSliceBytes));
  }
  return 0;
}
