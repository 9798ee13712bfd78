// SEEK on the chunk store: data and holes by block, past many groups, after punch and restart.
#include "fixture.h"

namespace braidfs::store::test {
namespace {

constexpr uint64_t kMiB = 1u << 20;

class Seek : public ::testing::Test {
 protected:
  void SetUp() override {
    store = open_store(host.boot());
    ASSERT_EQ(put(*store, id, 8192, pattern(1, 5000)), Status::kOk);  // these are blocks 2 and 3
    ASSERT_EQ(put(*store, id, 300 * kMiB, pattern(2, 4096)), Status::kOk);  // this is far behind
  }

  // The answer, with as many requests as needed.
  uint64_t seek(uint64_t offset, bool hole) {
    SeekResult result{offset, false};
    for (asked = 0; !result.ended; ++asked) {
      EXPECT_EQ(store->seek(id, 0, result.at, hole, result), Status::kOk);
    }
    return result.at;
  }

  Host host{1};
  std::unique_ptr<ChunkStore> store;
  const ObjectId id{7, 0};
  int asked = 0;
};

TEST_F(Seek, DataAndHolesByBlock) {
  EXPECT_EQ(seek(0, false), 8192u);
  EXPECT_EQ(seek(9000, false), 9000u);
  EXPECT_EQ(seek(0, true), 0u);
  EXPECT_EQ(seek(8192, true), 16384u);
  EXPECT_EQ(seek(300 * kMiB, true), 300 * kMiB + 4096);
  EXPECT_EQ(seek(300 * kMiB + 4096, false), SeekResult::kNothing);
  EXPECT_EQ(seek(900 * kMiB, true), 900 * kMiB);
}

TEST_F(Seek, LooksAtABoundedNumberOfGroupsAtATime) {
  for (uint64_t group = 1; group <= 100; ++group) {
    ASSERT_EQ(put(*store, id, group * kMiB, pattern(3, 4096)), Status::kOk);
    ASSERT_EQ(store->punch(id, group * kMiB, 4096, 0), Status::kOk);
  }
  EXPECT_EQ(seek(16384, false), 300 * kMiB);
  EXPECT_GT(asked, 1);
}

TEST_F(Seek, SkipsHolesOfAnySize) {
  constexpr uint64_t kFar = uint64_t{7} << 40;
  ASSERT_EQ(put(*store, id, kFar, pattern(4, 4096)), Status::kOk);
  EXPECT_EQ(seek(301 * kMiB, false), kFar);
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(store->checkpoint(), Status::kOk);
  store.reset();
  host.kill();
  store = open_store(host.boot());
  EXPECT_EQ(seek(301 * kMiB, false), kFar);
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(put(*store, id, kFar, pattern(5, 1 << 20)), Status::kOk);  // this is the other slot
  ASSERT_EQ(store->checkpoint(), Status::kOk);
  EXPECT_EQ(seek(301 * kMiB, false), kFar);
  EXPECT_EQ(seek(kFar, true), kFar + kMiB);
  EXPECT_EQ(seek(kFar + kMiB, false), SeekResult::kNothing);
}

TEST_F(Seek, PunchedBlocksAreHolesAlsoAfterARestart) {
  ASSERT_EQ(store->punch(id, 8192, 4096, 0), Status::kOk);
  EXPECT_EQ(seek(0, false), 12288u);
  ASSERT_EQ(store->sync(id), Status::kOk);
  store.reset();
  host.kill();
  store = open_store(host.boot());
  EXPECT_EQ(seek(0, false), 12288u);
}

TEST_F(Seek, NoObjectIsToldApart) {
  SeekResult result;
  EXPECT_EQ(store->seek({8, 0}, 0, 0, false, result), Status::kNoObject);
}

}  // namespace
}  // namespace braidfs::store::test
