#include "braidfs/frame.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <vector>

namespace braidfs {
namespace {

std::vector<std::byte> raw_of(const FrameHeader& header) {
  std::vector<std::byte> raw(kHeaderSize);
  std::memcpy(raw.data(), &header, kHeaderSize);
  return raw;
}

TEST(Hash, IsXxh3AtEveryLength) {
  std::vector<std::byte> bytes(5000);
  uint32_t state = 1;
  for (auto& byte : bytes)
    byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_EQ(xxh3(std::span(bytes).first(length)), XXH3_64bits(bytes.data(), length)) << length;
  }
}

TEST(Frame, SealedHeaderDecodesToItself) {
  FrameHeader header;
  header.op = static_cast<uint8_t>(Op::kWrite);
  header.offset = 1ull << 40;
  seal(header);
  const auto decoded = decode_header(raw_of(header));
  ASSERT_EQ(decoded.fault, FrameFault::kOk);
  EXPECT_EQ(decoded.header.offset, header.offset);
}

TEST(Frame, EveryFlippedBitIsRefused) {
  FrameHeader header;
  header.op = static_cast<uint8_t>(Op::kRead);
  seal(header);
  for (size_t bit = 0; bit < kHeaderSize * 8; ++bit) {
    auto raw = raw_of(header);
    raw[bit / 8] ^= std::byte{static_cast<uint8_t>(1u << (bit % 8))};
    EXPECT_NE(decode_header(raw).fault, FrameFault::kOk) << "bit " << bit;
  }
}

TEST(Frame, LengthsOverTheLimitAreRefused) {
  FrameHeader header;
  header.body_length = limits::kFrameBodyLengthMax + 1;
  seal(header);
  EXPECT_EQ(decode_header(raw_of(header)).fault, FrameFault::kBodyLength);
  header.body_length = 0;
  header.payload_length = limits::kFramePayloadLengthMax + 1;
  seal(header);
  EXPECT_EQ(decode_header(raw_of(header)).fault, FrameFault::kPayloadLength);
}

TEST(Blocks, SumsFollowBlockBoundariesOfTheObject) {
  std::vector<std::byte> payload(10000, std::byte{7});
  const uint64_t offset = 4000;  // the pieces have 96, 4096, 4096 and 1712 bytes
  ASSERT_EQ(blocks_touched(offset, 10000), 4u);
  std::vector<uint64_t> sums(4);
  hash_blocks(offset, payload, sums);
  EXPECT_EQ(sums[1], sums[2]);
  EXPECT_NE(sums[0], sums[1]);
  EXPECT_EQ(first_mismatch(offset, payload, sums), std::nullopt);
  payload[9999] = std::byte{8};
  EXPECT_EQ(first_mismatch(offset, payload, sums), 3u);
}

}  // namespace
}  // namespace braidfs
