// Bounds of what a store keeps in memory and has open: objects, records of groups, descriptors.
#include <cerrno>

#include "fixture.h"

namespace braidfs::store::test {
namespace {

class StoreBounds : public ::testing::Test {
 protected:
  void open(const StoreConfig& config) { store = open_store(host.boot(), config); }

  Host host{1};
  std::unique_ptr<ChunkStore> store;
};

TEST_F(StoreBounds, CachesStayBounded) {
  StoreConfig config = small_config();
  config.objects_cached_max = 20;
  config.groups_cached_max = 20;
  config.files_open_max = 10;
  open(config);
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_EQ(put(*store, {i, 0}, 0, pattern(i, 5000)), Status::kOk);
    if (i % 10 == 0) {
      ASSERT_EQ(store->checkpoint(), Status::kOk);
    }
  }
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i, 5000));
    ASSERT_LE(store->figures().objects_cached, 40u);
    ASSERT_LE(store->figures().groups_cached, 40u);
  }
}

// Objects whose descriptors were closed stay in the table and are opened again.
TEST_F(StoreBounds, OpenFilesStayBounded) {
  StoreConfig config = small_config();
  config.files_open_max = 10;
  open(config);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 1; i <= 200; ++i) {
      if (round == 0) {
        ASSERT_EQ(put(*store, {i, 0}, 0, pattern(i, 5000)), Status::kOk);
      }
      ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i, 5000));
      ASSERT_LE(store->figures().files_open, 24u) << "round " << round << ", object " << i;
    }
    ASSERT_EQ(store->checkpoint(), Status::kOk);
  }
}

// A target that is added later shares the descriptors of the process.
TEST_F(StoreBounds, OpenFilesAreBoundedAnew) {
  StoreConfig config = small_config();
  config.files_open_max = 100;
  open(config);
  for (uint64_t i = 1; i <= 200; ++i)
    ASSERT_EQ(put(*store, {i, 0}, 0, pattern(i, 5000)), Status::kOk);
  ASSERT_EQ(store->checkpoint(), Status::kOk);
  for (uint64_t i = 1; i <= 200; ++i)
    ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i, 5000));
  EXPECT_GE(store->figures().files_open, 90u);
  store->limit_files(10);
  for (uint64_t i = 1; i <= 200; ++i)
    ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i, 5000));
  EXPECT_LE(store->figures().files_open, 24u);
}

// There are more dirty objects than may otherwise be kept: none can be dropped before the
// checkpoint, and all beyond the bound are dropped with it.
TEST_F(StoreBounds, ACheckpointMakesRoom) {
  StoreConfig config = small_config();
  config.objects_cached_max = 20;
  config.groups_cached_max = 20;
  config.files_open_max = 10;
  config.dirty_groups_max = 1000;
  open(config);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 1; i <= 200; ++i) {
      ASSERT_EQ(put(*store, {i, 0}, 0, pattern(i + round, 5000)), Status::kOk);
    }
    EXPECT_GE(store->figures().objects_cached, 200u);
    EXPECT_LE(store->figures().files_open, 24u);
    for (uint64_t i = 1; i <= 200; ++i) {
      ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i + round, 5000));
      ASSERT_LE(store->figures().files_open, 24u) << "round " << round << ", object " << i;
    }
    for (uint64_t i = 1; i <= 200; i += 2) ASSERT_EQ(store->sync({i, 0}), Status::kOk);
    ASSERT_EQ(store->checkpoint(), Status::kOk);
    EXPECT_LE(store->figures().objects_cached, 20u);
    EXPECT_LE(store->figures().groups_cached, 20u);
    EXPECT_LE(store->figures().files_open, 10u);
    for (uint64_t i = 1; i <= 200; ++i) {
      ASSERT_EQ(get(*store, {i, 0}, 0, 5000).bytes, pattern(i + round, 5000));
    }
  }
}

// Nothing is done, and nothing is an I/O error: the request may be sent again.
TEST_F(StoreBounds, ShortDescriptorsAreBusyAndToldOnce) {
  StoreConfig config = small_config();
  int told = 0;
  config.on_log = [&](int, const std::string& text) {
    told += text.find("LimitNOFILE") != std::string::npos;
  };
  open(config);
  ASSERT_EQ(put(*store, {1, 0}, 0, pattern(1, 5000)), Status::kOk);
  ASSERT_EQ(store->checkpoint(), Status::kOk);
  store.reset();
  open(config);
  host.open_result = -EMFILE;
  EXPECT_EQ(get(*store, {1, 0}, 0, 5000).status, Status::kBusy);
  EXPECT_EQ(put(*store, {1, 0}, 0, pattern(2, 5000)), Status::kBusy);
  EXPECT_EQ(put(*store, {2, 0}, 0, pattern(3, 5000)), Status::kBusy);
  EXPECT_EQ(store->remove({1, 0}), Status::kBusy);
  host.open_result = 0;
  EXPECT_EQ(told, 1);
  EXPECT_EQ(store->figures().errors, 0u);
  EXPECT_EQ(get(*store, {1, 0}, 0, 5000).bytes, pattern(1, 5000));
  EXPECT_EQ(get(*store, {2, 0}, 0, 5000).status, Status::kNoObject);
}

// The list of dirty objects has them until the next checkpoint.
TEST_F(StoreBounds, RemovedObjectsKeepNoRecords) {
  StoreConfig config = small_config();
  config.dirty_groups_max = 1000;
  open(config);
  const uint64_t checkpoints = store->figures().checkpoints;
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_EQ(put(*store, {i, 0}, 0, pattern(i, 5000)), Status::kOk);
    ASSERT_EQ(store->remove({i, 0}), Status::kOk);
  }
  EXPECT_EQ(store->figures().checkpoints, checkpoints);
  EXPECT_EQ(store->figures().groups_cached, 0u);
  EXPECT_EQ(store->checkpoint(), Status::kOk);
}

}  // namespace
}  // namespace braidfs::store::test
