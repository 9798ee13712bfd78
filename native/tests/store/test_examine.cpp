// What a scrub finds on the device, and what a mend writes: exactly what was written last, or
// nothing.
#include <thread>

#include "fixture.h"

namespace braidfs::store::test {
namespace {

constexpr uint32_t kLength = (3u << 20) + 70000;
constexpr uint64_t kBlocks = (kLength + kBlockSize - 1) / kBlockSize;
const ObjectId kId{7, 0};

uint64_t home_of(uint64_t block) {
  return block_offset(static_cast<uint32_t>(block / kGroupBlocks), 0,
                      static_cast<uint32_t>(block % kGroupBlocks));
}

struct Whole {
  std::vector<std::pair<uint64_t, uint64_t>> sums;
  std::vector<uint64_t> damaged;
  bool records_lost = false;
  uint32_t renewed = 0;
  uint64_t length = 0;
  uint64_t bytes = 0;
  uint32_t steps = 0;
};

Whole examine_all(ChunkStore& store, ObjectId id = kId) {
  Whole whole;
  Examined found;
  for (uint32_t group = 0; !found.ended; group = found.group + 1) {
    EXPECT_EQ(store.examine(id, group, true, found), Status::kOk);
    for (const auto& [block, sum] : found.sums) whole.sums.emplace_back(block, sum);
    whole.damaged.insert(whole.damaged.end(), found.damaged.begin(), found.damaged.end());
    whole.records_lost |= found.records_lost;
    whole.renewed += found.records_renewed;
    whole.length = found.length;
    whole.bytes += found.bytes;
    ++whole.steps;
  }
  return whole;
}

struct Kept {
  Host host{1};
  Bytes8 expected = pattern(1, kLength);
  std::vector<CorruptBlock> reported;
  std::unique_ptr<ChunkStore> store;

  Kept() {
    start();
    EXPECT_EQ(put(*store, kId, 0, expected), Status::kOk);
    EXPECT_EQ(store->stop(), Status::kOk);
    start();
  }
  void start() {
    StoreConfig config = small_config();
    config.on_corrupt = [this](const CorruptBlock& found) { reported.push_back(found); };
    store = open_store(host.boot(), config);
  }
  Bytes& now() { return host.find(object_path(kId))->now; }
  Bytes8 block(uint64_t number) const {
    Bytes8 bytes(kBlockSize);
    const size_t from = number * kBlockSize;
    std::copy_n(expected.begin() + static_cast<ptrdiff_t>(from),
                std::min<size_t>(kBlockSize, expected.size() - from), bytes.begin());
    return bytes;
  }
  Mended mend(uint64_t number, const Bytes8& bytes) {
    Mended mended;
    EXPECT_EQ(store->mend(kId, number, bytes, mended), Status::kOk);
    return mended;
  }
};

TEST(Examine, EveryFlippedBitIsFoundAndMendedWhereItLies) {
  Kept kept;
  std::mt19937_64 random(1);
  std::map<uint64_t, int> flipped;
  for (int i = 0; i < 100; ++i) {
    const uint64_t at = random() % kLength;
    if (flipped[at / kBlockSize]++ != 0) continue;
    kept.now().flip(home_of(at / kBlockSize) + at % kBlockSize, 1u << (random() % 8));
  }
  const Whole found = examine_all(*kept.store);
  std::vector<uint64_t> expected;
  for (const auto& [block, count] : flipped) expected.push_back(block);
  EXPECT_EQ(found.damaged, expected);
  EXPECT_EQ(found.length, kLength);
  EXPECT_EQ(found.bytes, kBlocks * kBlockSize);
  EXPECT_FALSE(found.records_lost);
  EXPECT_TRUE(kept.reported.empty()) << "no reader met it";
  for (const uint64_t block : expected) {
    const Mended mended = kept.mend(block, kept.block(block));
    EXPECT_EQ(mended.mended, 1u);
    EXPECT_EQ(mended.left, 0u);
  }
  EXPECT_TRUE(examine_all(*kept.store).damaged.empty());
  kept.store.reset();
  kept.host.cut();
  kept.start();
  EXPECT_EQ(get(*kept.store, kId, 0, kLength).bytes, kept.expected) << "it was durable";
}

TEST(Examine, SumsTellBytesApartAndHolesFromNothing) {
  Host host(2);
  auto store = open_store(host.boot());
  const ObjectId zeros{8, 0};
  const ObjectId holes{9, 0};
  const ObjectId other{10, 0};
  const Bytes8 end = pattern(3, 5000);
  for (const ObjectId id : {zeros, holes, other})
    ASSERT_EQ(put(*store, id, 9u << 20, end), Status::kOk);
  ASSERT_EQ(put(*store, zeros, 0, Bytes8(3u << 20)), Status::kOk);
  ASSERT_EQ(put(*store, other, 1u << 20, pattern(4, 1)), Status::kOk);
  const Whole of_holes = examine_all(*store, holes);
  EXPECT_EQ(examine_all(*store, zeros).sums, of_holes.sums);
  EXPECT_EQ(of_holes.sums.size(), 2u);
  EXPECT_EQ(of_holes.steps, 3u) << "groups without data are not looked at, but for the first";
  EXPECT_NE(examine_all(*store, other).sums, of_holes.sums);
  Examined found;
  EXPECT_EQ(store->examine({11, 0}, 0, true, found), Status::kNoObject);
}

// What waits in the log for its place is not on the device yet, and is no damage there.
TEST(Examine, BytesOfTheLogAreNotLookedForOnTheDevice) {
  Kept kept;
  const Bytes8 news = pattern(9, kBlockSize);
  ASSERT_EQ(put(*kept.store, kId, 5 * kBlockSize, news), Status::kOk);
  kept.now().flip(home_of(5), 1);
  const Whole found = examine_all(*kept.store);
  EXPECT_TRUE(found.damaged.empty());
  EXPECT_EQ(found.sums[5].second, xxh3(news));
  EXPECT_EQ(kept.mend(5, kept.block(5)).mended, 0u);
  EXPECT_EQ(get(*kept.store, kId, 5 * kBlockSize, kBlockSize).bytes, news);
}

TEST(Mend, WritesNothingButWhatWasWrittenLast) {
  Kept kept;
  const Bytes8 old = kept.block(6);
  const Bytes8 news = pattern(9, kBlockSize);
  ASSERT_EQ(put(*kept.store, kId, 6 * kBlockSize, news), Status::kOk);
  ASSERT_EQ(kept.store->checkpoint(), Status::kOk);
  EXPECT_EQ(kept.mend(6, old).left, 0u) << "a block that is whole stays as it is";
  EXPECT_EQ(get(*kept.store, kId, 6 * kBlockSize, kBlockSize).bytes, news);
  kept.now().flip(home_of(6), 1);
  EXPECT_EQ(kept.mend(6, old).left, 1u) << "older bytes, of a replica that is stale";
  EXPECT_EQ(get(*kept.store, kId, 6 * kBlockSize, kBlockSize).status, Status::kCorrupt);
  EXPECT_EQ(kept.mend(6, news).mended, 1u);
  EXPECT_EQ(get(*kept.store, kId, 6 * kBlockSize, kBlockSize).bytes, news);
  Mended mended;
  EXPECT_EQ(kept.store->mend({8, 0}, 0, news, mended), Status::kNoObject);
  EXPECT_EQ(kept.store->mend(kId, 0, {}, mended), Status::kBadRequest);
  EXPECT_EQ(kept.store->mend(kId, kBlocksMax, news, mended), Status::kBadRequest);
}

TEST(Mend, TakesTheWholeLastBlockOfAnObject) {
  Kept kept;
  kept.now().flip(home_of(kBlocks - 1) + 17, 4);
  EXPECT_EQ(examine_all(*kept.store).damaged, std::vector<uint64_t>{kBlocks - 1});
  EXPECT_EQ(kept.mend(kBlocks - 1, kept.block(kBlocks - 1)).mended, 1u);
  EXPECT_EQ(get(*kept.store, kId, 0, kLength).bytes, kept.expected);
}

TEST(Mend, ADeviceThatCannotSyncTakesNoWritesAnyMore) {
  Kept kept;
  kept.now().flip(home_of(1), 1);
  kept.host.sync_result = -EIO;
  Mended mended;
  EXPECT_EQ(kept.store->mend(kId, 1, kept.block(1), mended), Status::kEio);
  kept.host.sync_result = 0;
  EXPECT_EQ(put(*kept.store, kId, 0, pattern(2, kBlockSize)), Status::kEio);
}

TEST(Examine, DamagedRecordsAreWrittenAgainFromMemory) {
  for (const uint32_t group : {0u, 1u}) {
    for (const uint8_t place : {uint8_t{0}, uint8_t{1}}) {
      Kept kept;
      for (int turn = 0; turn < 2; ++turn) {  // so that both places have a page, here in memory
        ASSERT_EQ(put(*kept.store, kId, group * kGroupBytes, kept.block(group * kGroupBlocks)),
                  Status::kOk);
        ASSERT_EQ(kept.store->checkpoint(), Status::kOk);
      }
      EXPECT_EQ(examine_all(*kept.store).renewed, 0u);
      kept.now().flip(page_offset(group, place) + 100, 1);
      const Whole found = examine_all(*kept.store);
      EXPECT_EQ(found.renewed, 1u);
      EXPECT_FALSE(found.records_lost);
      EXPECT_EQ(examine_all(*kept.store).renewed, 0u);
      kept.store.reset();
      kept.start();
      EXPECT_EQ(get(*kept.store, kId, 0, kLength).bytes, kept.expected);
    }
  }
}

TEST(Examine, RecordsThatAreLostAreSaidAndTheRestIsExamined) {
  Kept kept;
  kept.now().flip(page_offset(1, 0) + 100, 1);
  kept.now().flip(home_of(3 * kGroupBlocks), 1);
  const Whole found = examine_all(*kept.store);
  EXPECT_TRUE(found.records_lost);
  EXPECT_EQ(found.damaged, std::vector<uint64_t>{3 * kGroupBlocks});
  Mended mended;
  EXPECT_EQ(kept.store->mend(kId, kGroupBlocks, kept.block(0), mended), Status::kCorrupt);
  kept.store.reset();
  kept.now().flip(page_offset(0, 0) + 100, 1);
  kept.start();
  const Whole all = examine_all(*kept.store);
  EXPECT_TRUE(all.records_lost);
  EXPECT_EQ(all.steps, 1u);
  EXPECT_TRUE(kept.reported.empty());
}

TEST(Examine, RecordsAloneAreReadFast) {
  Kept kept;
  const Whole whole = examine_all(*kept.store);
  kept.now().flip(home_of(7), 1);
  Examined found;
  ASSERT_EQ(kept.store->examine(kId, 0, false, found), Status::kOk);
  EXPECT_EQ(found.bytes, 0u);
  EXPECT_TRUE(found.damaged.empty());
  ASSERT_EQ(found.sums.size(), kGroupBlocks);
  EXPECT_EQ(found.sums[7].sum, whole.sums[7].second);
}

TEST(Examine, LeavesNoRecordsInMemory) {
  Kept kept;
  const uint64_t before = kept.store->figures().groups_cached;
  (void)examine_all(*kept.store);
  EXPECT_LE(kept.store->figures().groups_cached, before + 1) << "group 0 stays";
}

// Writers, mends of what they overwrite, and examinations at the same time: nothing is ever called
// damaged, and the last bytes stay.
TEST(Examine, WritersMeanwhile) {
  Kept kept;
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (uint64_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937_64 random(writer);
      for (uint64_t turn = 0; turn < 300; ++turn) {
        const uint64_t block = (random() % (kBlocks / 2)) * 2 + writer;
        const auto count = std::min<uint64_t>(1 + random() % 300, kBlocks - block);
        const Bytes8 bytes = pattern(turn * 2 + writer, count * kBlockSize);
        EXPECT_EQ(put(*kept.store, kId, block * kBlockSize, bytes), Status::kOk);
        if (turn % 50 == 0) {
          EXPECT_EQ(kept.store->checkpoint(), Status::kOk);
        }
      }
    });
  }
  std::thread mender([&] {
    while (!ends) {
      for (uint64_t block = 0; block < kBlocks; block += 7) {
        EXPECT_EQ(kept.mend(block, kept.block(block)).mended, 0u);
      }
    }
  });
  for (int turn = 0; turn < 20; ++turn) EXPECT_TRUE(examine_all(*kept.store).damaged.empty());
  for (std::thread& thread : threads) thread.join();
  ends = true;
  mender.join();
  EXPECT_TRUE(examine_all(*kept.store).damaged.empty());
  EXPECT_EQ(get(*kept.store, kId, 0, kLength).status, Status::kOk);
  EXPECT_TRUE(kept.reported.empty());
}

}  // namespace
}  // namespace braidfs::store::test
