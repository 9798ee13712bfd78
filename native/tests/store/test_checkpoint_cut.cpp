// A loss of power while a checkpoint removes what it made unnecessary of the log: the log goes on
// where it was, so what is synced later is durable.
#include "fixture.h"

namespace braidfs::store::test {
namespace {

constexpr ObjectId kObject{7, 0};
constexpr uint64_t kCuts = 40;     // at each place
constexpr uint64_t kChanges = 24;  // of the disk, more than a checkpoint makes

// What the present power cut leaves is opened, written, synced, and cut again.
void expect_durable(Host& host) {
  const Bytes8 bytes = pattern(5, 4096);
  {
    const auto store = open_store(host.boot(true));
    ASSERT_TRUE(store);
    ASSERT_EQ(get(*store, kObject, 0, 4096).bytes, pattern(3, 4096));
    ASSERT_EQ(put(*store, kObject, 8192, bytes), Status::kOk);
    ASSERT_EQ(store->sync(kObject), Status::kOk);
  }
  host.cut();
  const auto store = open_store(host.boot(true));
  ASSERT_TRUE(store);
  EXPECT_EQ(get(*store, kObject, 8192, 4096).bytes, bytes);
}

TEST(CheckpointCut, LeavesNoPromiseWithoutItsSegment) {
  for (uint64_t change = 0; change < kChanges; ++change) {
    for (uint64_t seed = 0; seed < kCuts; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", change " + std::to_string(change));
      Host host(seed);
      {
        const auto store = open_store(host.boot());
        for (uint64_t value = 1; value <= 3; ++value) {
          ASSERT_EQ(put(*store, kObject, 0, pattern(value, 4096)), Status::kOk);
          ASSERT_EQ(store->sync(kObject), Status::kOk);
        }
        host.die_after(change);
        (void)store->checkpoint();
        host.die();
      }
      host.cut();
      expect_durable(host);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace braidfs::store::test
