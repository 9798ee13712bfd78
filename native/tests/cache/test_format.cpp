#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cache/format.h"

namespace braidfs::cache {
namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(size_t length, uint32_t seed) {
  Bytes bytes(length);
  for (size_t at = 0; at < length; ++at) bytes[at] = std::byte(seed + at * 7 + at / 251);
  return bytes;
}

RecordHead head_of(const Bytes& bytes, SliceKey key = {7, 3}, uint64_t stamp = 99) {
  RecordHead head;
  const std::span<const std::byte> all(bytes);
  const std::array parts{all.first(std::min<size_t>(bytes.size(), kBlock)),
                         all.subspan(std::min<size_t>(bytes.size(), kBlock))};
  make_head(head, key, stamp, std::span(parts).first(bytes.size() > kBlock ? 2 : 1));
  return head;
}

TEST(CacheHead, NamesItsSlice) {
  const Bytes bytes = pattern(3 * kBlock + 17, 1);
  const RecordHead head = head_of(bytes);
  EXPECT_TRUE(is_head_of(head, {7, 3}, 99, 3 * kBlock + 17));
  EXPECT_FALSE(is_head_of(head, {8, 3}, 99, 3 * kBlock + 17));
  EXPECT_FALSE(is_head_of(head, {7, 2}, 99, 3 * kBlock + 17));
  EXPECT_FALSE(is_head_of(head, {7, 3}, 98, 3 * kBlock + 17));
  EXPECT_FALSE(is_head_of(head, {7, 3}, 99, 3 * kBlock));
}

TEST(CacheHead, AnyChangedByteBreaksTheSeal) {
  const RecordHead head = head_of(pattern(5000, 1));
  for (size_t at = 0; at < sizeof head; ++at) {
    RecordHead changed = head;
    reinterpret_cast<unsigned char*>(&changed)[at] ^= 0x10;
    EXPECT_FALSE(is_head_of(changed, {7, 3}, 99, 5000)) << at;
  }
}

TEST(CacheHead, ChecksAnyWholeBlocks) {
  const Bytes bytes = pattern(3 * kBlock + 17, 5);
  const RecordHead head = head_of(bytes);
  const std::span<const std::byte> all(bytes);
  EXPECT_TRUE(are_bytes_of(head, 0, all));
  EXPECT_TRUE(are_bytes_of(head, kBlock, all.subspan(kBlock, kBlock)));
  EXPECT_TRUE(are_bytes_of(head, 3 * kBlock, all.subspan(3 * kBlock)));
  EXPECT_FALSE(are_bytes_of(head, 0, all.subspan(kBlock, kBlock)));
  EXPECT_FALSE(are_bytes_of(head, 5, all.subspan(5, 10)));
  const Bytes longer = pattern(4 * kBlock, 5);
  EXPECT_FALSE(are_bytes_of(head, 0, longer));
  Bytes flipped = bytes;
  flipped.back() ^= std::byte{1};
  EXPECT_FALSE(are_bytes_of(head, 0, flipped));
}

Bytes index_of(const std::vector<Placed>& placed) {
  Bytes bytes;
  for (const Placed& each : placed) {
    const IndexEntry entry = index_entry(each);
    const auto raw = std::as_bytes(std::span(&entry, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  return bytes;
}

TEST(CacheIndex, EndsAtTheFirstEntryThatIsNotWhole) {
  const Bytes bytes =
      index_of({{{1, 0}, 5, 100, 0}, {{2, 0}, 5, 5000, 2}, {{3, 1}, 5, kSliceBytes, 5}});
  EXPECT_EQ(read_index(bytes, 8u << 20).size(), 3u);
  EXPECT_EQ(read_index(std::span(bytes).first(bytes.size() - 1), 8u << 20).size(), 2u);
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes torn = bytes;
    torn[at] ^= std::byte{4};
    EXPECT_EQ(read_index(torn, 8u << 20).size(), at / sizeof(IndexEntry)) << at;
  }
}

TEST(CacheIndex, RefusesWhatCannotBe) {
  const auto count = [](const std::vector<Placed>& placed) {
    return read_index(index_of(placed), 8u << 20).size();
  };
  EXPECT_EQ(count({{{1, 0}, 5, 0, 0}}), 0u);                // empty
  EXPECT_EQ(count({{{1, 0}, 5, kSliceBytes + 1, 0}}), 0u);  // longer than a slice
  EXPECT_EQ(count({{{1, 0}, 5, kSliceBytes, 8191}}), 0u);   // this place is not in the segment
  EXPECT_EQ(count({{{1, 0}, 5, 100, ~0u}}), 0u);
  // This place is within the one before.
  EXPECT_EQ(count({{{1, 0}, 5, 5000, 0}, {{2, 0}, 5, 1, 2}}), 1u);
}

TEST(CacheSuperblock, Roundtrip) {
  Superblock made{.segment_bytes = 8u << 20};
  made.cluster[3] = std::byte{9};
  Bytes bytes = encode(made);
  const auto read = decode_superblock(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->cluster, made.cluster);
  EXPECT_EQ(read->segment_bytes, made.segment_bytes);
  bytes[9] ^= std::byte{1};
  EXPECT_FALSE(decode_superblock(bytes));
  EXPECT_FALSE(decode_superblock({}));
  EXPECT_FALSE(decode_superblock(encode({.segment_bytes = 4096})));
}

}  // namespace
}  // namespace braidfs::cache
