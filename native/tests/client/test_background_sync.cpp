// What nobody syncs is synced after a while; what was evicted unsynced is still synced by an fsync.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;

RigSettings with_sync_after(uint32_t sync_after_ms) {
  RigSettings settings;
  settings.core.sync_after_ms = sync_after_ms;
  return settings;
}

size_t syncs(Rig& rig) {
  size_t count = 0;
  for (const auto& target : rig.targets) count += target->count(Op::kSync);
  return count;
}

TEST(BackgroundSync, HeldBytesBecomeDurableAndLeave) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(300'000, 1);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
}

TEST(BackgroundSync, AClosedInodeIsForgottenAfterwards) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(1000, 2);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.release(kFh), 0);
  rig.core->inode_drop(Rig::kIno);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
  EXPECT_TRUE(rig.forgets_inodes());
}

// The metaserver learns from the next fsync which objects are durable, though nothing was left for
// it.
TEST(BackgroundSync, TheNextFsyncTellsWhatItMadeDurable) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(100, 3));
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  const size_t before = syncs(rig);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(syncs(rig), before);
  EXPECT_EQ(rig.commits().back().stripes, 1u);
  EXPECT_EQ(rig.commits().back().flags & kCommitSynced, kCommitSynced);
}

TEST(BackgroundSync, AFailureIsNobodysErrorWhileTheBytesAreHeld) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide([left = std::make_shared<int>(1)](const FrameHeader& header) {
    const bool fails = header.op == static_cast<uint8_t>(Op::kSync) && (*left)-- > 0;
    return FakeTarget::Decision{fails ? FakeTarget::Fault::kStatus : FakeTarget::Fault::kNone,
                                Status::kEio};
  });
  const Bytes bytes = pattern(100, 4);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.flush(kFh), 0);
  for (int tries = 0; tries < 2000 && syncs(rig) == 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
}

// Each ends the attempt at once, so that it is in nobody's way, and leads to another one later.
class BackgroundSyncTrouble : public ::testing::TestWithParam<FakeTarget::Decision> {};

TEST_P(BackgroundSyncTrouble, IsTriedAgainLater) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  const auto trouble = GetParam();
  rig.targets[0]->decide([trouble, left = std::make_shared<int>(1)](const FrameHeader& header) {
    const bool now = header.op == static_cast<uint8_t>(Op::kSync) && (*left)-- > 0;
    return now ? trouble : FakeTarget::Decision{};
  });
  const Bytes bytes = pattern(100, 7);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.release(kFh), 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
  EXPECT_EQ(syncs(rig), 2u);
}

INSTANTIATE_TEST_SUITE_P(
    , BackgroundSyncTrouble,
    ::testing::Values(FakeTarget::Decision{FakeTarget::Fault::kHangUpBefore, Status::kOk},
                      FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kBadCapability},
                      FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kBusy}));

TEST(BackgroundSync, AnObjectThatWasRemovedNeedsNone) {
  Rig rig(with_sync_after(20));
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide([](const FrameHeader& header) {
    const bool gone = header.op == static_cast<uint8_t>(Op::kSync);
    return FakeTarget::Decision{gone ? FakeTarget::Fault::kStatus : FakeTarget::Fault::kNone,
                                Status::kNoObject};
  });
  rig.write(kFh, 0, pattern(100, 5));
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_EQ(syncs(rig), 1u);
}

// An inode that was closed and whose held bytes had to leave still knows that it is not durable.
TEST(BackgroundSync, AnFsyncAfterReopeningSyncsWhatWasEvicted) {
  RigSettings settings = with_sync_after(60'000);
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(1000, 6);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.release(kFh), 0);
  rig.core->inode_drop(Rig::kIno);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_NE(rig.file(bytes.size(), true), bytes);
  rig.open(2, O_RDWR, bytes.size());
  EXPECT_EQ(rig.fsync(2), 0);
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
}

}  // namespace
}  // namespace braidfs::client::rig
