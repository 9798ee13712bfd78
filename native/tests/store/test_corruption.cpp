// Flipped bits: in the blocks of an object, in record pages, in the log. No read returns wrong
// bytes.
#include "fixture.h"

namespace braidfs::store::test {
namespace {

constexpr uint32_t kLength = (1u << 20) + 70000;
const ObjectId kId{7, 0};

struct Stopped {
  Host host{1};
  Bytes8 expected = pattern(1, kLength);

  Stopped() {
    auto store = open_store(host.boot());
    EXPECT_EQ(put(*store, kId, 0, expected), Status::kOk);
    EXPECT_EQ(store->stop(), Status::kOk);
  }
  Inode& object() { return *host.find(object_path(kId)); }
};

TEST(Corruption, EveryFlippedBitOfABlockIsSeen) {
  Stopped stopped;
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const uint64_t at = random() % kLength;
    const auto group = static_cast<uint32_t>(at / kGroupBytes);
    const auto block = static_cast<uint32_t>(at % kGroupBytes / kBlockSize);
    const uint64_t home = block_offset(group, 0, block) + at % kBlockSize;
    const auto bit = static_cast<uint8_t>(1u << (random() % 8));
    stopped.object().now.flip(home, bit);
    std::vector<CorruptBlock> reported;
    StoreConfig config = small_config();
    config.on_corrupt = [&](const CorruptBlock& found) { reported.push_back(found); };
    auto store = open_store(stopped.host.boot(), config);
    EXPECT_EQ(get(*store, kId, 0, kLength).status, Status::kCorrupt);
    ASSERT_EQ(reported.size(), 1u);
    EXPECT_EQ(reported[0].object, kId);
    EXPECT_EQ(reported[0].offset, at / kBlockSize * kBlockSize);
    // A partial write of that block must not make the wrong bytes look right.
    EXPECT_EQ(put(*store, kId, at / kBlockSize * kBlockSize, pattern(2, 1)), Status::kCorrupt);
    EXPECT_EQ(store->stop(), Status::kOk);
    stopped.object().now.flip(home, bit);
  }
}

// Whole blocks go unchecked to a reader which checks them itself, with the checksums that reveal
// the damage.
TEST(Corruption, RawReadsShowItToTheReader) {
  Stopped stopped;
  constexpr uint32_t kBlocks = (kLength + kBlockSize - 1) / kBlockSize;
  constexpr uint32_t kDamaged = 5;
  for (const uint32_t damaged : {kDamaged, kBlocks - 1}) {
    const auto group = static_cast<uint32_t>(damaged / (kGroupBytes / kBlockSize));
    const uint64_t home = block_offset(group, 0, damaged % (kGroupBytes / kBlockSize));
    stopped.object().now.flip(home, 1);
    int reported = 0;
    StoreConfig config = small_config();
    config.on_corrupt = [&](const CorruptBlock&) { ++reported; };
    auto store = open_store(stopped.host.boot(), config);
    Bytes8 buffer(read_buffer_bytes(0, kLength));
    std::vector<uint64_t> sums(kBlocks);
    const ReadRequest wanted{
        .object = kId, .offset = 0, .length = kLength, .buffer = buffer, .raw = true};
    const ReadResult result = store->read(wanted, sums);
    if (damaged == kDamaged) {
      EXPECT_EQ(result.status, Status::kOk);
      EXPECT_EQ(first_mismatch(0, std::span(buffer).first(kLength), sums), kDamaged);
      EXPECT_EQ(reported, 0);
      EXPECT_EQ(get(*store, kId, 0, kLength).status, Status::kCorrupt)
          << "asked again, the store looks";
    } else {
      EXPECT_EQ(result.status, Status::kCorrupt)
          << "of a part of a block it makes the checksum itself";
    }
    EXPECT_EQ(reported, 1);
    EXPECT_EQ(store->stop(), Status::kOk);
    stopped.object().now.flip(home, 1);
  }
}

TEST(Corruption, EveryFlippedBitOfARecordPageIsSeen) {
  Stopped stopped;
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    const auto group = static_cast<uint32_t>(i % 2);
    const uint64_t at = page_offset(group, 0) + random() % kPageSize;
    stopped.object().now.flip(at, 4);
    auto store = open_store(stopped.host.boot());
    EXPECT_EQ(get(*store, kId, 0, kLength).status, Status::kCorrupt) << "byte " << at;
    store.reset();
    stopped.object().now.flip(at, 4);
    stopped.host.kill();
  }
  auto store = open_store(stopped.host.boot());
  EXPECT_EQ(get(*store, kId, 0, kLength).bytes, stopped.expected);
}

TEST(Corruption, DamagedObjectCanBeDeleted) {
  Stopped stopped;
  stopped.object().now.flip(100, 1);
  auto store = open_store(stopped.host.boot());
  EXPECT_EQ(get(*store, kId, 0, 10).status, Status::kCorrupt);
  EXPECT_EQ(store->remove(kId), Status::kOk);
  EXPECT_EQ(get(*store, kId, 0, 10).status, Status::kNoObject);
}

// A flipped bit of the log damages the object to which it belongs, not the target.
TEST(Corruption, FlippedBitInTheLogIsAnErrorOfItsObject) {
  Host host(3);
  const ObjectId other{8, 0};
  auto store = open_store(host.boot());
  ASSERT_EQ(put(*store, other, 0, pattern(50, 4096)), Status::kOk);
  ASSERT_EQ(store->sync(other), Status::kOk);
  std::string path;
  host.for_each_file("wal", [&](const std::string& name, Inode& inode) {
    if (inode.now.size() > kSegmentHeaderSize) path = name;
  });
  const uint64_t start = host.find(path)->now.size();
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(put(*store, kId, i * 4096, pattern(i, 4096)), Status::kOk);
    ASSERT_EQ(store->sync(kId), Status::kOk);
  }
  store.reset();
  host.kill();
  const uint64_t size = host.find(path)->now.size();
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    Host damaged(4);
    damaged.become(host);
    const uint64_t at = start + random() % (size - start);
    damaged.find(path)->now.flip(at, 2);
    std::string told;
    StoreConfig config = small_config();
    config.on_log = [&](int, const std::string& text) { told += text; };
    store = open_store(damaged.boot(), config);
    EXPECT_NE(told.find("damaged"), std::string::npos) << at;
    const Got got = get(*store, kId, 0, 20 * 4096);
    if (got.status == Status::kOk) {  // it is a COMMIT: the promises have the same content
      EXPECT_EQ(Bytes8(got.bytes.end() - 4096, got.bytes.end()), pattern(19, 4096));
    } else {
      EXPECT_EQ(got.status, Status::kCorrupt);
      EXPECT_NE(told.find(object_path(kId)), std::string::npos) << told;
    }
    EXPECT_EQ(get(*store, other, 0, 4096).bytes, pattern(50, 4096));
    EXPECT_EQ(store->incarnation(), 2u) << "clients send again what they had not synced";
    store.reset();
  }
}

}  // namespace
}  // namespace braidfs::store::test
