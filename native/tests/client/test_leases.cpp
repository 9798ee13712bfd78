// Leases at the lanes: who waits, who passes, what is asked, what a return waits for.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "leased_rig.h"

namespace braidfs::client::rig {
namespace {

TEST(Leases, AReadAsksOnceAndThenGoesOnWithoutPages) {
  LeasedRig rig(100);
  const uint64_t unique = rig.start_read(kFh, 0, 100);
  EXPECT_FALSE(rig.replier.wait_for(unique, kShortly_ms));
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);  // nothing was granted
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(100));
  EXPECT_EQ(rig.asked(), 1u);
  EXPECT_EQ(rig.invalidates(), 1u);
}

// Python has taken the size to commit it; an answer from before comes to another OPEN of this
// client.
TEST(Leases, AnOlderAnswerDoesNotMoveTheEndOfWhatOnlyThisClientWrites) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  const Bytes first = pattern(100, 1);
  const Bytes second = pattern(50, 2);
  EXPECT_EQ(rig.write(kFh, 0, first, O_APPEND).count, 100u);
  EXPECT_EQ(rig.drain(false), 0);
  (void)rig.core->inode_take(kIno);
  rig.core->inode_put(rig.attributes(0), rig.layout(), rig.capability());
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes, first);
  EXPECT_EQ(rig.write(kFh, 0, second, O_APPEND).count, 50u);
  EXPECT_EQ(rig.flush(kFh), 0);
  Bytes wanted = first;
  wanted.insert(wanted.end(), second.begin(), second.end());
  EXPECT_EQ(rig.file(150), wanted);
}

// One hundred bytes were written and committed, the lease was returned, and another client has cut
// the file to forty.
struct CutElsewhereRig : LeasedRig {
  CutElsewhereRig() {
    core->inode_lease(kIno, kBoth, 0);
    write(kFh, 0, pattern(100, 1));
    EXPECT_EQ(flush(kFh), 0);
    core->inode_lease(kIno, 0, 0);
    recorded_size = 40;
  }
  // Its commit tells of durable stripes alone.
  uint64_t start_commit() {
    hold_commits(true);
    const uint64_t unique = start_fsync(kFh);
    EXPECT_TRUE(eventually([&] { return core->is_ahead(kIno); }));
    return unique;
  }
};

TEST(Leases, ACutByAnotherClientIsSeenThoughACommitIsUnderWay) {
  CutElsewhereRig rig;
  const uint64_t fsync = rig.start_commit();
  rig.core->inode_put(rig.attributes(40, 5), rig.layout(1), rig.capability());
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.hold_commits(false);
  EXPECT_EQ(rig.replier.wait(fsync).error, 0);
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes.size(), 40u);
  rig.write(kFh, 50, pattern(10, 2));
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.commits().back().size, 60u);
  EXPECT_EQ(rig.commits().back().flags & kCommitSize, kCommitSize);
}

TEST(Leases, ACutByAnotherClientIsSeenInTheAnswerToACommit) {
  CutElsewhereRig rig;
  const uint64_t fsync = rig.start_commit();
  rig.hold_commits(false);
  EXPECT_EQ(rig.replier.wait(fsync).error, 0);
  rig.core->inode_lease(kIno, kBoth, 0);
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes.size(), 40u);
}

TEST(Leases, AReadUnderALeaseAsksNobody) {
  LeasedRig rig(100);
  rig.core->inode_lease(kIno, kLeaseData, 0);
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes, Bytes(100));
  EXPECT_EQ(rig.asked(), 0u);
  EXPECT_EQ(rig.invalidates(), 0u);
}

// Its bytes are of before: whoever was granted the lease may have been told newer ones.
TEST(Leases, PagesReadWithoutALeaseAreInvalidatedThoughOneCameSince) {
  LeasedRig rig(100);
  rig.stall(Op::kRead);
  const uint64_t unique = rig.start_read(kFh, 0, 100);
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);
  for (int tries = 0; tries < 5000 && rig.targets[0]->count(Op::kRead) == 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  rig.core->inode_lease(kIno, kLeaseData, 0);
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(100));
  EXPECT_EQ(rig.invalidates(), 1u);
}

// Linux would not believe the answer of another READ that it has sent before.
TEST(Leases, PagesReadUnderALeaseThatCameForThemStay) {
  LeasedRig rig(100);
  const uint64_t unique = rig.start_read(kFh, 0, 4096);
  rig.wait_asked(1);
  EXPECT_FALSE(rig.eof_pages.empty());
  rig.core->inode_lease(kIno, kLeaseData, 0);
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(100));
  EXPECT_EQ(rig.invalidates(), 0u);
  EXPECT_TRUE(rig.eof_pages.empty());
}

TEST(Leases, PagesAreInvalidatedBehindTheAnswerThatWaitedForThem) {
  LeasedRig rig(100);
  rig.stall(Op::kRead);
  const uint64_t first = rig.start_read(kFh, 0, 100);
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);  // nothing was granted
  const uint64_t behind = rig.start_read(kFh, 4096, 4096);
  rig.wait_asked(2);
  rig.core->inode_asked(kIno, 0);
  std::optional<Reply> answer;
  rig.at_invalidation = [&] {
    if (!answer) answer = rig.replier.wait_for(behind, 0);
    EXPECT_TRUE(answer);
  };
  EXPECT_FALSE(rig.replier.wait_for(behind, kShortly_ms));
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.replier.wait(first).bytes, Bytes(100));
  EXPECT_EQ(rig.invalidates(), 2u);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->bytes, Bytes(0));
}

TEST(Leases, AReadAsksAgainWhenALaterEndWasTold) {
  LeasedRig rig(100);
  const uint64_t unique = rig.start_read(kFh, 0, 4096);
  rig.wait_asked(1);
  EXPECT_FALSE(rig.eof_pages.keeps(kIno, 300, 0, {}));
  rig.core->inode_asked(kIno, 0);
  rig.wait_asked(2);
  EXPECT_FALSE(rig.replier.wait_for(unique, kShortly_ms));
  auto grown = rig.attributes(300);
  rig.core->inode_put(grown, rig.layout(), rig.capability());
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(300));
  EXPECT_EQ(rig.invalidates(), 1u);
  EXPECT_TRUE(rig.eof_pages.empty());
}

TEST(Leases, AnAnswerFromBeforeTheReadIsTooOld) {
  LeasedRig rig(100);
  const uint64_t first = rig.start_read(kFh, 0, 100);
  rig.wait_asked(1);
  const uint64_t second = rig.start_read(kFh, 0, 100);
  EXPECT_FALSE(rig.replier.wait_for(second, kShortly_ms));
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(first).error, 0);
  rig.wait_asked(2);
  EXPECT_FALSE(rig.replier.wait_for(second, kShortly_ms));
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(second).error, 0);
}

TEST(Leases, AFailedQuestionIsTheReadsError) {
  LeasedRig rig(100);
  const uint64_t unique = rig.start_read(kFh, 0, 100);
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, ETIMEDOUT);
  EXPECT_EQ(rig.replier.wait(unique).error, ETIMEDOUT);
}

TEST(Leases, AWriteWaitsForTheExclusiveLease) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kLeaseData, 0);
  const Bytes bytes = pattern(5000, 1);
  const uint64_t unique = rig.start_write(kFh, 0, bytes);
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);  // not granted: it asks again
  rig.wait_asked(2);
  EXPECT_FALSE(rig.replier.wait_for(unique, kShortly_ms));
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(unique).count, 5000u);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.file(5000), bytes);
}

TEST(Leases, AWriteThatGrowsTooFarAsksBeforeItIsRefused) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.core->size_limit_put(kIno, 100);
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 1)).count, 100u);
  const uint64_t refused = rig.start_write(kFh, 100, pattern(10, 2));
  rig.wait_asked(1);
  EXPECT_EQ(rig.events(EventKind::kAsk).back().a, 110);
  EXPECT_FALSE(rig.replier.wait_for(refused, kShortly_ms));
  rig.core->inode_asked(kIno, 0);  // nothing has changed
  EXPECT_EQ(rig.replier.wait(refused).error, EDQUOT);
  EXPECT_EQ(rig.write(kFh, 90, pattern(10, 3)).count, 10u);  // no growth
  const uint64_t taken = rig.start_write(kFh, 100, pattern(10, 2));
  rig.wait_asked(2);
  rig.core->size_limit_put(kIno, 110);
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(taken).count, 10u);
  rig.core->size_limit_put(kIno, Inode::kUnlimited);
  EXPECT_EQ(rig.write(kFh, 1 << 20, pattern(10, 2)).count, 10u);
  EXPECT_EQ(rig.asked(), 2u);
}

TEST(Leases, AWriteThatIsTooFarAndHasNoLeaseIsNotRefusedYet) {
  LeasedRig rig;
  rig.core->size_limit_put(kIno, 0);
  const uint64_t unique = rig.start_write(kFh, 0, pattern(10, 1));
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);  // not granted: the limit may be an old one
  rig.wait_asked(2);
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(unique).error, EDQUOT);
}

TEST(Leases, WhatWaitsKnowsItsBytes) {
  LeasedRig rig;
  rig.start_write(kFh, 8192, pattern(100, 1));
  rig.wait_asked(1);
  const std::vector<std::pair<uint64_t, uint64_t>> expected{{8192, 8292}};
  EXPECT_EQ(rig.core->asked_ranges(kIno), expected);
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.core->inode_asked(kIno, 0);
}

TEST(Leases, AWritePassesWhileItsLeaseIsRecalled) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, 0, kBoth);
  const Bytes bytes = pattern(5000, 2);
  EXPECT_EQ(rig.write(kFh, 0, bytes).count, 5000u);
  EXPECT_EQ(rig.file(5000), bytes);  // it went through
  ASSERT_FALSE(rig.commits().empty());
  EXPECT_EQ(rig.commits().back().size, 5000u);  // and others can see the size
  EXPECT_GE(rig.invalidates(), 1u);
  EXPECT_EQ(rig.asked(), 0u);
}

TEST(Leases, ARecallLetsPassWhatWaits) {
  LeasedRig rig;
  const uint64_t unique = rig.start_write(kFh, 0, pattern(10, 3));
  rig.wait_asked(1);
  rig.core->inode_lease(kIno, 0, kBoth);
  EXPECT_EQ(rig.replier.wait(unique).count, 10u);
}

// Another client has truncated the file meanwhile, and its former objects are deleted.
TEST(Leases, AReadWhoseLeaseAndObjectAreGoneAsksAgain) {
  LeasedRig rig;
  rig.core->inode_put(rig.attributes(100, 2), rig.layout(0, 1), rig.capability());
  rig.targets[0]->decide([&](const FrameHeader& header) {
    const bool is_read = header.op == static_cast<uint8_t>(Op::kRead);
    if (!is_read) return FakeTarget::Decision{};
    return FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kNoObject};
  });
  const uint64_t unique = rig.start_read(kFh, 0, 100);
  rig.wait_asked(1);
  rig.core->inode_asked(kIno, 0);
  rig.wait_asked(2);
  rig.targets[0]->decide([](const FrameHeader&) { return FakeTarget::Decision{}; });
  rig.core->inode_put(rig.attributes(100, 3), rig.layout(0, 0), rig.capability());
  rig.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(100));
}

TEST(Leases, AnAppendGoesToTheTrueEnd) {
  LeasedRig rig(1000);
  rig.core->inode_lease(kIno, kBoth, 0);
  const Bytes bytes = pattern(100, 5);
  EXPECT_EQ(rig.write(kFh, 10, bytes, O_APPEND).count,
            100u);  // the kernel thinks that it ends at 10
  EXPECT_EQ(rig.flush(kFh), 0);
  Bytes expected(1100);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 1000);
  EXPECT_EQ(rig.file(1100), expected);
  EXPECT_EQ(rig.invalidates(), 1u);
}

// Its bytes go past the kernel's pages, of which one has zeros where they belong.
TEST(Leases, ADirectWriteThatGrowsTheFileInvalidatesThePageAtItsEnd) {
  LeasedRig rig(100);
  constexpr uint64_t kDirect = kFh + 1;
  ASSERT_TRUE(rig.core->handle_put(kDirect, kIno, O_RDWR | O_APPEND, true));
  rig.core->inode_lease(kIno, kBoth, 0);
  EXPECT_EQ(rig.write(kDirect, 100, pattern(10, 1), O_APPEND).count, 10u);
  EXPECT_EQ(rig.invalidates(), 0u);  // nobody has read it
  EXPECT_EQ(rig.read(kFh, 0, 4096).bytes.size(), 110u);
  EXPECT_EQ(rig.write(kDirect, 110, pattern(10, 2), O_APPEND).count, 10u);
  EXPECT_EQ(rig.write(kDirect, 120, pattern(10, 3), O_APPEND).count, 10u);
  ASSERT_EQ(rig.invalidates(), 1u);
  EXPECT_EQ(rig.invalidated.front().first, 110u);
  EXPECT_TRUE(rig.eof_pages.empty());
}

TEST(Leases, ALostSessionFailsWhatWasWritten) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 6)).count, 100u);
  EXPECT_TRUE(rig.core->inode_lost(kIno));
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_FALSE(rig.core->inode_lost(kIno));
  EXPECT_EQ(rig.targets[0]->count(Op::kWrite), 0u);
}

// Others may have written there meanwhile: what was held may not come back over it.
TEST(Leases, ALostSessionSendsNothingAgain) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.write(kFh, 0, pattern(100, 6));
  EXPECT_EQ(rig.flush(kFh), 0);
  const size_t before = rig.targets[0]->count(Op::kWrite);
  EXPECT_TRUE(rig.core->inodes_lost().empty()) << "its next fsync tells";
  rig.targets[0]->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.targets[0]->count(Op::kWrite), before);
}

TEST(Leases, AfterALostSessionAnFsyncStillSyncs) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  const Bytes bytes = pattern(100, 7);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_TRUE(rig.core->inodes_lost().empty());
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(100, true), bytes);
}

TEST(Leases, ALostSessionNamesClosedInodesThatMayNotBeDurable) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.write(kFh, 0, pattern(100, 8));
  EXPECT_EQ(rig.release(kFh), 0);
  rig.core->inode_drop(kIno);
  const std::vector<std::pair<uint64_t, bool>> expected{{kIno, false}};
  EXPECT_EQ(rig.core->inodes_lost(), expected);
  EXPECT_TRUE(rig.core->inodes_lost().empty());
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  EXPECT_TRUE(rig.forgets_inodes());
}

// A SYNC of an object that was never written would call its holes durable.
TEST(Leases, ObjectsThatAnotherClientMadeAreNotSynced) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.write(kFh, 0, pattern(300'000, 9));
  EXPECT_EQ(rig.flush(kFh), 0);
  rig.core->inode_lease(kIno, 0, 0);
  rig.file_id = 8;  // truncated to nothing
  rig.core->inode_put(rig.attributes(0, 100), rig.layout(), rig.capability());
  const size_t commits = rig.commits().size();
  EXPECT_EQ(rig.fsync(kFh), 0);
  for (const auto& target : rig.targets) EXPECT_EQ(target->count(Op::kSync), 0u);
  ASSERT_GT(rig.commits().size(), commits);
  EXPECT_EQ(rig.commits().back().stripes, 0u);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
}

// Python may hand over two replies in another order than they came.
TEST(Leases, ARecordOfOlderObjectsIsIgnored) {
  LeasedRig rig;
  rig.core->inode_lease(kIno, kBoth, 0);
  rig.file_id = 8;
  rig.core->inode_resize(rig.attributes(0, 100), rig.layout(), rig.capability());
  rig.file_id = Rig::kIno;
  rig.core->inode_put(rig.attributes(5000, 99), rig.layout(), rig.capability());
  rig.file_id = 8;
  const Bytes bytes = pattern(100, 10);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(100), bytes);
}

// ---- files that Python keeps open ----

constexpr uint64_t kOwn = uint64_t{1} << 62;
using fuse::Opening;

TEST(KeptInodes, AreOpenedByLanesUnderALease) {
  LeasedRig rig(100);
  EXPECT_EQ(rig.core->open(kIno, kOwn, O_RDONLY), Opening::kRefused);  // not kept
  ASSERT_TRUE(rig.core->inode_keep(kIno));
  EXPECT_EQ(rig.core->open(kIno, kOwn, O_RDONLY), Opening::kRefused);  // no lease
  rig.core->inode_lease(kIno, kLeaseData, 0);
  EXPECT_EQ(rig.core->open(kIno, kOwn, O_RDONLY), Opening::kKeepsPages);
  EXPECT_EQ(rig.read(kOwn, 0, 100).bytes, Bytes(100));
  rig.core->inode_lease(kIno, 0, kLeaseData);  // recalled
  EXPECT_EQ(rig.core->open(kIno, kOwn + 1, O_RDONLY), Opening::kRefused);
  rig.core->inode_lease(kIno, kLeaseData, 0);
  rig.core->lease_until(Clock::now());
  EXPECT_EQ(rig.core->open(kIno, kOwn + 1, O_RDONLY), Opening::kRefused);  // not renewed
  EXPECT_FALSE(rig.core->inode_keep(kIno + 1));                            // unknown
  EXPECT_EQ(rig.core->open(kIno + 1, kOwn + 1, O_RDONLY), Opening::kRefused);
}

TEST(KeptInodes, TellPythonOnlyOfHandlesThatItTookOver) {
  LeasedRig rig(100);
  rig.core->inode_lease(kIno, kLeaseData, 0);
  ASSERT_TRUE(rig.core->inode_keep(kIno));
  for (const uint64_t fh : {kOwn, kOwn + 1, kOwn + 2}) {
    ASSERT_EQ(rig.core->open(kIno, fh, O_RDONLY), Opening::kKeepsPages);
  }
  rig.release(kOwn);
  EXPECT_EQ(rig.core->inode_unkeep(kIno), 2u);
  rig.release(kOwn + 1);
  rig.release(kOwn + 2);
  EXPECT_TRUE(eventually([&] { return rig.events(EventKind::kRelease).size() >= 2; }));
  EXPECT_EQ(rig.events(EventKind::kRelease).front().a, static_cast<int64_t>(kOwn + 1));
  EXPECT_EQ(rig.core->inode_unkeep(kIno), 0u);
  EXPECT_EQ(rig.core->open(kIno, kOwn + 3, O_RDONLY), Opening::kRefused);
}

TEST(GrantedInodes, ComeWithTheirFirstHandleAndGoWithTheLast) {
  LeasedRig rig(100);
  rig.core->inode_drop(kIno);  // Python has nothing of it
  const auto open = [&](uint64_t fh) {
    return rig.core->open_granted(rig.attributes(100, 1), rig.layout(), rig.capability(), fh,
                                  O_RDONLY);
  };
  ASSERT_TRUE(open(kOwn));
  EXPECT_EQ(rig.core->inodes_granted(), std::vector<uint64_t>{kIno});
  EXPECT_EQ(rig.core->open(kIno, kOwn + 1, O_RDONLY), Opening::kKeepsPages);
  EXPECT_EQ(rig.read(kOwn, 0, 100).bytes, Bytes(100));
  rig.release(kOwn);
  rig.release(kOwn + 1);
  EXPECT_TRUE(eventually([&] { return rig.core->inodes_granted().empty(); }));
  EXPECT_EQ(rig.core->open(kIno, kOwn + 2, O_RDONLY), Opening::kRefused);
  EXPECT_TRUE(rig.events(EventKind::kRelease).empty());
}

TEST(GrantedInodes, AreTakenOverWithTheirHandles) {
  LeasedRig rig(100);
  rig.core->inode_drop(kIno);
  const auto open = [&](uint64_t fh) {
    return rig.core->open_granted(rig.attributes(100, 1), rig.layout(), rig.capability(), fh,
                                  O_RDONLY);
  };
  ASSERT_TRUE(open(kOwn));
  EXPECT_EQ(rig.core->take_granted(kIno), 1u);
  EXPECT_EQ(rig.core->take_granted(kIno), std::nullopt);
  EXPECT_EQ(rig.core->open(kIno, kOwn + 1, O_RDONLY), Opening::kRefused);
  rig.release(kOwn);
  EXPECT_TRUE(eventually([&] { return rig.events(EventKind::kRelease).size() == 1; }));
}

TEST(GrantedInodes, AreNotOpenedWithoutALease) {
  LeasedRig rig(100);
  const auto open = [&](const Bytes& capability) {
    return rig.core->open_granted(rig.attributes(100, 1), rig.layout(), capability, kOwn, O_RDONLY);
  };
  EXPECT_FALSE(open(Bytes(3)));  // malformed
  rig.core->pause_granted(true);
  EXPECT_FALSE(open(rig.capability()));
  rig.core->pause_granted(false);
  rig.core->lease_until(Clock::now());
  EXPECT_FALSE(open(rig.capability()));
  EXPECT_TRUE(rig.core->inodes_granted().empty());
}

}  // namespace
}  // namespace braidfs::client::rig
