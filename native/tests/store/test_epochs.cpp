// Late arrivals: commands from before a truncate, and objects that were only created.
#include <thread>

#include "fixture.h"

namespace braidfs::store::test {
namespace {

constexpr uint64_t kMiB = 1u << 20;

class Epochs : public ::testing::Test {
 protected:
  void lose_power() {
    store.reset();
    host.cut();
    store = open_store(host.boot(true));
  }

  Host host{1};
  std::unique_ptr<ChunkStore> store = open_store(host.boot());
  const ObjectId id{7, 0};
};

// A repeated command of an abandoned attempt arrives late and finds newer bytes.
TEST_F(Epochs, ARepeatedTruncateCutsNothing) {
  ASSERT_EQ(put(*store, id, 0, pattern(1, 3 * kMiB)), Status::kOk);
  ASSERT_EQ(store->truncate(id, kMiB, 4), Status::kOk);
  EXPECT_EQ(store->truncate(id, kMiB, 4), Status::kOk) << "nothing was written: it is done";
  ASSERT_EQ(put(*store, id, kMiB, pattern(2, 5000), 4), Status::kOk);
  EXPECT_EQ(store->truncate(id, kMiB, 4), Status::kStaleTruncateEpoch);
  EXPECT_EQ(store->truncate(id, 0, 3), Status::kStaleTruncateEpoch);
  ASSERT_EQ(store->sync(id), Status::kOk);
  lose_power();
  EXPECT_EQ(store->truncate(id, kMiB, 4), Status::kStaleTruncateEpoch);
  EXPECT_EQ(get(*store, id, kMiB, 5000).bytes, pattern(2, 5000));
  EXPECT_EQ(store->truncate(id, kMiB, 5), Status::kOk);
}

TEST_F(Epochs, PunchAndSeekOfBeforeATruncateAreRefused) {
  SeekResult result;
  ASSERT_EQ(put(*store, id, 0, pattern(1, 20000)), Status::kOk);
  ASSERT_EQ(store->truncate(id, 10000, 2), Status::kOk);
  ASSERT_EQ(put(*store, id, 10000, pattern(2, 10000), 2), Status::kOk);
  EXPECT_EQ(store->punch(id, 10000, 10000, 1), Status::kStaleTruncateEpoch);
  EXPECT_EQ(store->seek(id, 1, 0, false, result), Status::kStaleTruncateEpoch);
  EXPECT_EQ(get(*store, id, 10000, 10000).bytes, pattern(2, 10000));
  EXPECT_EQ(store->seek(id, 2, 0, false, result), Status::kOk);
  EXPECT_EQ(store->punch(id, 10000, 10000, 2), Status::kOk);
}

TEST_F(Epochs, WhatWasMadeIsThereAfterAPowerCut) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Host other(seed);
    auto one = open_store(other.boot());
    ASSERT_EQ(one->make(id, 3), Status::kOk);
    ASSERT_EQ(one->make(id, 3), Status::kOk);
    ASSERT_EQ(one->sync(id), Status::kOk);
    one.reset();
    other.cut();
    one = open_store(other.boot(true));
    EXPECT_EQ(get(*one, id, 0, 4096).status, Status::kOk);
    EXPECT_EQ(one->make(id, 2), Status::kStaleTruncateEpoch);
    EXPECT_EQ(put(*one, id, 0, pattern(1, 100), 2), Status::kStaleTruncateEpoch);
    ASSERT_EQ(one->checkpoint(), Status::kOk);
    one.reset();
    one = open_store(other.boot());
    EXPECT_EQ(get(*one, id, 0, 4096).status, Status::kOk);
    ASSERT_EQ(one->remove(id), Status::kOk);
    EXPECT_EQ(one->make(id, 3), Status::kNoObject) << "a late one brings nothing back";
  }
}

TEST_F(Epochs, ARaisedEpochRefusesWriteSyncPunchAndSeekOfBefore) {
  SeekResult result;
  ASSERT_EQ(put(*store, id, 0, pattern(1, 20000), 3), Status::kOk);
  ASSERT_EQ(store->raise_epoch(id, 8), Status::kOk);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 100), 7), Status::kStaleTruncateEpoch);
  EXPECT_EQ(store->sync(id, 7), Status::kStaleTruncateEpoch);
  EXPECT_EQ(store->punch(id, 0, 4096, 7), Status::kStaleTruncateEpoch);
  EXPECT_EQ(store->seek(id, 7, 0, false, result), Status::kStaleTruncateEpoch);
  EXPECT_EQ(get(*store, id, 0, 20000).bytes, pattern(1, 20000)) << "nothing was cut";
  EXPECT_EQ(store->raise_epoch(id, 5), Status::kOk) << "it is higher already";
  EXPECT_EQ(put(*store, id, 0, pattern(2, 100), 7), Status::kStaleTruncateEpoch);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 100), 8), Status::kOk);
  EXPECT_EQ(store->sync(id, 8), Status::kOk);
  EXPECT_EQ(store->sync(id, 9), Status::kOk);
  EXPECT_EQ(store->sync({8, 0}, 0), Status::kOk) << "there is no such object";
}

TEST_F(Epochs, ARaisedEpochOutlivesAPowerCut) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Host other(seed);
    auto one = open_store(other.boot());
    const ObjectId copied{7, object_number(3, seed % 2 == 0 ? 1 : limits::kGenerationMax)};
    const bool was_written = seed % 4 < 2;
    if (was_written) {
      ASSERT_EQ(put(*one, copied, 0, pattern(seed, 100'000), 2), Status::kOk);
    }
    ASSERT_EQ(one->raise_epoch(copied, 6), Status::kOk);
    if (seed % 3 == 0) {
      ASSERT_EQ(one->checkpoint(), Status::kOk);
    }
    one.reset();
    other.cut();
    one = open_store(other.boot(true));
    ObjectFigures figures;
    ASSERT_EQ(one->stat(copied, figures), Status::kOk) << "it exists, seed " << seed;
    EXPECT_EQ(figures.epoch, 6u);
    EXPECT_EQ(figures.length, was_written ? 100'000u : 0u) << "what was written is durable as well";
    EXPECT_EQ(put(*one, copied, 0, pattern(1, 100), 5), Status::kStaleTruncateEpoch);
    EXPECT_EQ(one->sync(copied, 5), Status::kStaleTruncateEpoch);
    if (was_written) {
      EXPECT_EQ(get(*one, copied, 0, 100'000).bytes, pattern(seed, 100'000));
    }
    EXPECT_EQ(one->stat({7, 3}, figures), Status::kNoObject) << "that is another name";
  }
}

// A raise to an epoch that the object has already may be the repetition of one that failed.
TEST_F(Epochs, ARepeatedRaiseIsDurableAsWell) {
  ASSERT_EQ(store->make(id, 4), Status::kOk);
  ASSERT_EQ(store->raise_epoch(id, 4), Status::kOk);
  lose_power();
  EXPECT_EQ(put(*store, id, 0, pattern(1, 100), 3), Status::kStaleTruncateEpoch);
}

TEST_F(Epochs, ARaiseWaitsForWritesOfBefore) {
  const Bytes8 bytes = pattern(1, 4096);
  WriteOp op;
  ASSERT_EQ(put(*store, id, 0, pattern(2, 100)), Status::kOk);
  ASSERT_EQ(store->begin_write(op, {.object = id, .offset = 8192, .payload = bytes, .sums = {}},
                               Wait::kYes),
            Status::kOk);
  std::atomic<bool> raised{false};
  std::thread raiser([&] {
    EXPECT_EQ(store->raise_epoch(id, 1), Status::kOk);
    raised = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(raised) << "the write may still be answered";
  op.plan().run();
  EXPECT_EQ(store->finish_write(op), Status::kOk);
  raiser.join();
  EXPECT_EQ(put(*store, id, 0, bytes, 0), Status::kStaleTruncateEpoch);
}

TEST_F(Epochs, ARaiseBringsNothingBack) {
  ASSERT_EQ(put(*store, id, 0, pattern(2, 100)), Status::kOk);
  ASSERT_EQ(store->remove(id), Status::kOk);
  EXPECT_EQ(store->raise_epoch(id, 3), Status::kNoObject);
  const ObjectId lost{8, 0};
  EXPECT_EQ(store->raise_epoch(lost, 3, true), Status::kNoObject) << "it must exist";
  EXPECT_EQ(store->raise_epoch(lost, 3), Status::kOk);
  EXPECT_EQ(store->raise_epoch(lost, 4, true), Status::kOk);
}

}  // namespace
}  // namespace braidfs::store::test
