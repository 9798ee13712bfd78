// What the return of a lease waits for, and what is not sent any more after it.
#include <gtest/gtest.h>

#include "leased_rig.h"

namespace braidfs::client::rig {
namespace {

TEST(LeaseReturns, TheReturnWaitsForWritesThatPassed) {
  LeasedRig rig;
  rig.stall(Op::kWrite);
  rig.core->inode_lease(kIno, 0, kBoth);
  const uint64_t unique = rig.start_write(kFh, 0, pattern(5000, 4));
  EXPECT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kWrite) > 0; }));
  rig.core->inode_lease(kIno, 0, 0);
  rig.core->drain(99, kIno, false, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(kShortly_ms));
  EXPECT_TRUE(rig.events(EventKind::kDone).empty());
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.wait_event(EventKind::kDone).token, 99u);
  EXPECT_EQ(rig.replier.wait(unique).count, 5000u);
  EXPECT_EQ(rig.commits().back().size, 5000u);
}

TEST(LeaseReturns, NothingIsSentAgainAfterTheReturn) {
  LeasedRig rig;
  rig.write_and_flush();
  EXPECT_GT(rig.account(Buffer::Account::kHeld), 0u);
  rig.core->inode_lease(kIno, 0, 0);
  rig.core->drain(98, kIno, false, true);
  EXPECT_EQ(rig.wait_event(EventKind::kDone).token, 98u);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  rig.targets[0]->lose_unsynced();  // a reboot: what is held would be sent again
  EXPECT_EQ(rig.fsync(kFh), EIO);
}

// The lease was returned twice: with bytes that the target lost then, and with others since.
TEST(LeaseReturns, AfterALossWhatIsLeftIsSynced) {
  LeasedRig rig;
  const auto write_and_return = [&](uint64_t offset, uint64_t number) {
    rig.write_and_flush(offset);
    rig.core->inode_lease(kIno, 0, 0);
    rig.core->drain(number, kIno, false, true);
    EXPECT_TRUE(eventually([&] { return rig.events(EventKind::kDone).size() == number; }));
  };
  write_and_return(0, 1);
  rig.targets[0]->lose_unsynced();
  write_and_return(8192, 2);
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.targets[0]->count(Op::kSync), 2u);  // it has the others durably
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.targets[0]->count(Op::kSync), 2u);
}

// It was closed, so its lease is a shared one. When that is gone another client may write there.
TEST(LeaseReturns, NothingOfAClosedFileIsSentAgainAfterTheReturn) {
  LeasedRig rig;
  rig.write_and_flush();
  rig.core->inode_lease(kIno, kLeaseData, 0);
  EXPECT_GT(rig.account(Buffer::Account::kHeld), 0u);
  rig.core->inode_lease(kIno, 0, kLeaseData);
  rig.core->inode_lease(kIno, 0, 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  rig.targets[0]->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.targets[0]->count(Op::kWrite), 1u);
}

// The target lost them while the lease was a shared one, and they are on their way again.
TEST(LeaseReturns, TheReturnOfASharedLeaseWaitsForBytesThatAreSentAgain) {
  LeasedRig rig;
  rig.write_and_flush();
  EXPECT_FALSE(rig.core->inode_lease(kIno, kLeaseData, 0));
  rig.targets[0]->lose_unsynced();
  rig.stall(Op::kWrite);
  rig.start_fsync(kFh);  // the target's answer says that they are lost
  EXPECT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kWrite) > 1; }));
  rig.core->inode_lease(kIno, 0, kLeaseData);
  EXPECT_TRUE(rig.core->inode_lease(kIno, 0, 0));
  rig.core->drain(99, kIno, false, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(kShortly_ms));
  EXPECT_TRUE(rig.events(EventKind::kDone).empty());
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.wait_event(EventKind::kDone).token, 99u);
  EXPECT_FALSE(rig.core->inode_lease(kIno, 0, 0));
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
}

}  // namespace
}  // namespace braidfs::client::rig
