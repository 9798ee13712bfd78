// Late arrivals: commands from before a truncate, and objects that were only created.
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

}  // namespace
}  // namespace braidfs::store::test
