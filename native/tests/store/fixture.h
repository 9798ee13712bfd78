// Shared parts of the tests of the chunk store: a store on a simulated host, and short names for
// its calls.
#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "braidfs/frame.h"
#include "simulated_device.h"
#include "store/chunk_store.h"
#include "store/layout.h"

namespace braidfs::store::test {

using Bytes8 = std::vector<std::byte>;

inline Uuid uuid_of(uint8_t value) {
  Uuid uuid;
  uuid.fill(std::byte{value});
  return uuid;
}

inline StoreConfig small_config() {
  StoreConfig config;
  config.cluster = uuid_of(1);
  config.target = uuid_of(2);
  config.create = true;
  config.background = false;
  config.reserve_bytes = 0;
  return config;
}

inline std::unique_ptr<ChunkStore> open_store(std::shared_ptr<Device> device,
                                              const StoreConfig& config = small_config()) {
  StoreOpened opened = ChunkStore::open(std::move(device), config);
  EXPECT_EQ(opened.status, Status::kOk) << opened.message;
  return std::move(opened.store);
}

// Bytes that show their origin: every 8 bytes name seed and position.
inline Bytes8 pattern(uint64_t seed, size_t length) {
  Bytes8 bytes(length);
  for (size_t i = 0; i < length; i += 8) {
    const uint64_t word = (seed * 0x9e3779b97f4a7c15u) ^ (i * 0xd6e8feb86659fd93u) ^ seed;
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, length - i));
  }
  return bytes;
}

inline Status put(ChunkStore& store, ObjectId id, uint64_t offset, const Bytes8& bytes,
                  uint32_t epoch = 0) {
  return store.write(
      {.object = id, .epoch = epoch, .offset = offset, .payload = bytes, .sums = {}});
}

struct Got {
  Status status = Status::kOk;
  Bytes8 bytes;
};

// Reads, and checks the checksums that came with the bytes.
inline Got get(ChunkStore& store, ObjectId id, uint64_t offset, uint32_t length) {
  Bytes8 buffer(read_buffer_bytes(offset, length));
  std::vector<uint64_t> sums(blocks_touched(offset, length));
  const ReadResult result =
      store.read({.object = id, .offset = offset, .length = length, .buffer = buffer}, sums);
  if (result.status != Status::kOk) return {result.status, {}};
  const auto start = buffer.begin() + static_cast<ptrdiff_t>(offset % 4096);
  Got got{Status::kOk, Bytes8(start, start + result.length)};
  EXPECT_FALSE(first_mismatch(offset, got.bytes, std::span(sums).first(result.sum_count)));
  EXPECT_EQ(result.sum_count, blocks_touched(offset, result.length));
  return got;
}

}  // namespace braidfs::store::test
