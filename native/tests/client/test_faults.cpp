// What breaks: connections, targets that forget, refusals, deadlines, signals, commits.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
using Fault = FakeTarget::Fault;

FakeTarget::Decide on(Op op, FakeTarget::Decision decision, int times = 1 << 30) {
  auto left = std::make_shared<int>(times);
  return [=](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op != static_cast<uint8_t>(op) || *left <= 0) return {};
    --*left;
    return decision;
  };
}

RigSettings with_timeout(uint32_t timeout_ms) {
  RigSettings settings;
  settings.core.timeout_ms = timeout_ms;
  return settings;
}

// ---- objects that a disk has lost ----

class LostObject : public ::testing::Test {
 protected:
  static constexpr uint32_t kChunk = 64u << 10;  // the first one is lost, the others are there

  LostObject() {
    rig_.open(kFh, O_RDWR, 4 * kChunk, 0xf);
    for (uint32_t stripe = 1; stripe < 4; ++stripe) {
      rig_.targets[stripe]->put_object(Rig::kIno, stripe, pattern(kChunk, stripe));
    }
  }
  bool is_lost() { return rig_.targets[0]->object(Rig::kIno, 0).empty(); }

  Rig rig_;
};

TEST_F(LostObject, IsNotMadeByWhatIsWrittenBehind) {
  EXPECT_EQ(rig_.write(kFh, 100, pattern(5000, 9)).error, 0);
  EXPECT_EQ(rig_.write(kFh, kChunk + 100, pattern(5000, 8)).error, 0);
  EXPECT_EQ(rig_.fsync(kFh), EIO);
  EXPECT_TRUE(is_lost());
  EXPECT_EQ(rig_.read(kFh, 0, 4096).error, EIO);
  EXPECT_EQ(rig_.fsync(kFh), 0) << "told once";
  EXPECT_EQ(rig_.read(kFh, kChunk + 100, 5000).bytes, pattern(5000, 8))
      << "what else was written is there";
  EXPECT_TRUE(eventually([&] {  // with one line for the file, however much was written
    const auto lines = rig_.events(EventKind::kLog);
    return std::ranges::count_if(lines, [](const Event& line) {
             return line.payload.find("has lost what it held of stripe 0") != std::string::npos;
           }) == 1;
  }));
}

TEST_F(LostObject, IsToldAtOnceToWhoWaits) {
  EXPECT_EQ(rig_.write(kFh, 0, pattern(4096, 9), O_DSYNC).error, EIO);
  EXPECT_EQ(rig_.write(kFh, kChunk, pattern(4096, 9), O_DSYNC).error, 0);
  EXPECT_TRUE(is_lost());
}

TEST_F(LostObject, NoHoleAndNoCopyMakesIt) {
  FakeTarget& target = *rig_.targets[0];
  target.decide([](const FrameHeader& header) -> FakeTarget::Decision {
    const bool is_refused = (header.flags & kFlagMustExist) != 0;
    return {is_refused ? Fault::kStatus : Fault::kNone, Status::kNoObject};
  });
  ASSERT_TRUE(rig_.core->punch(5, Rig::kIno, 0, 8192));
  ASSERT_TRUE(rig_.core->copy(6, {Rig::kIno, 0}, {Rig::kIno, 4 * kChunk}, kChunk, false));
  EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kDone).size() == 2; }));
  for (const Event& event : rig_.events(EventKind::kDone)) EXPECT_EQ(event.a, EIO);
  EXPECT_EQ(target.count(Op::kPunch), 1u);
  EXPECT_EQ(target.count(Op::kCopy), 1u);
}

TEST_F(LostObject, AnotherFileIdIsAnotherObject) {
  rig_.file_id = 77;
  rig_.open(2, O_RDWR, 0);
  EXPECT_EQ(rig_.write(2, 0, pattern(4096, 9)).error, 0);
  EXPECT_EQ(rig_.fsync(2), 0);
  EXPECT_EQ(rig_.targets[0]->object(77, 0), pattern(4096, 9));
}

// ---- connections ----

TEST(Faults, HangUpBeforeAndAfterTheWriteLosesAndRepeatsNothing) {
  for (const Fault fault : {Fault::kHangUpBefore, Fault::kHangUpAfter}) {
    Rig rig;
    rig.open(kFh, O_RDWR);
    for (const auto& target : rig.targets) target->decide(on(Op::kWrite, {fault}, 3));
    const Bytes bytes = pattern(1'000'000, 1);
    EXPECT_EQ(rig.write(kFh, 0, bytes).count, bytes.size());
    EXPECT_EQ(rig.flush(kFh), 0);
    EXPECT_EQ(rig.file(bytes.size()), bytes);
    EXPECT_GE(rig.targets[0]->count(Op::kWrite), 4u);
  }
}

TEST(Faults, AServerThatHangsUpWithoutAnAnswerIsAskedEverMoreRarely) {
  Rig rig;
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kHangUpBefore}));
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  EXPECT_FALSE(rig.replier.wait_for(unique, 400));
  EXPECT_GE(rig.targets[0]->count(Op::kRead), 2u);
  EXPECT_LE(rig.targets[0]->count(Op::kRead), 6u);  // after 0, 50, 150, 350 ms
  rig.targets[0]->decide({});
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

TEST(Faults, ReadsSurviveHangUpsInTheMiddle) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(1u << 20, 2);
  rig.write(kFh, 0, bytes, O_DIRECT);
  for (const auto& target : rig.targets) target->decide(on(Op::kRead, {Fault::kHangUpAfter}, 2));
  EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes, bytes);
}

TEST(Faults, NoConnectionYetMeansWaiting) {
  Rig rig;
  rig.open(kFh, O_RDWR, 5000);
  rig.set_connecting(false);
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  EXPECT_FALSE(rig.replier.wait_for(unique, 150));
  rig.set_connecting(true);
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

TEST(Faults, ASilentConnectionIsLeftAndItsRequestsAreSentAgain) {
  RigSettings settings;
  settings.core.silence_ms_max = 100;
  Rig rig(settings);
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kStall}, 1));
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
  EXPECT_EQ(rig.targets[0]->count(Op::kRead), 2u);
}

// By another connection, made while the silent one is still there.
TEST(Faults, ASilentConnectionIsReplacedBeforeItIsCut) {
  RigSettings settings;
  settings.core.silence_ms_max = 2000;
  Rig rig(settings);
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kStall}, 1));
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
  EXPECT_EQ(rig.targets[0]->count(Op::kRead), 2u);
  uint64_t lost = 0;
  for (uint32_t lane = 0; lane < rig.core->lane_count(); ++lane)
    lost += rig.core->lane(lane).counters().connections_lost;
  EXPECT_EQ(lost, 0u);
}

TEST(Faults, ASlowAnswerOfALivingServerIsWaitedFor) {
  RigSettings settings;
  settings.core.silence_ms_max = 600;
  Rig rig(settings);
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kForget}, 1));
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  EXPECT_FALSE(rig.replier.wait_for(unique, 1900));
  EXPECT_EQ(rig.targets[0]->count(Op::kRead), 1u);
  EXPECT_GE(rig.targets[0]->count(Op::kPing), 3u);
  rig.targets[0]->hang_up();
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

// A process that was stopped finds deadlines behind it whose answers it could not take.
TEST(Faults, TimeInWhichALaneDidNotRunCountsAgainstNobody) {
  RigSettings settings = with_timeout(600);
  settings.lanes = 1;
  settings.core.silence_ms_max = 900;
  Rig rig(settings);
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kForget}, 1));
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  ASSERT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kRead) == 1; }));
  rig.on_lane(
      0, [](fuse::LaneContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); });
  EXPECT_FALSE(rig.replier.wait_for(unique, 100)) << "no EIO yet";
  rig.targets[0]->hang_up();
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

TEST(Faults, DeadlineEndsInEio) {
  Rig rig(with_timeout(200));
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kStall}));
  EXPECT_EQ(rig.read(kFh, 0, 5000).error, EIO);
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
}

TEST(Faults, UnknownTargetEndsInEioAtTheDeadline) {
  Rig rig(with_timeout(100));
  rig.core->target_put(100, 99);  // a node that nobody can connect
  rig.set_connecting(false);
  rig.open(kFh, O_RDWR, 5000);
  EXPECT_EQ(rig.read(kFh, 0, 5000).error, EIO);
}

// What the end of the session told is not told again when the WRITE that was on its way ends.
TEST(Faults, BytesThatWereGivenUpAreLostOnce) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.set_connecting(false);
  for (const auto& target : rig.targets) target->hang_up();
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 1)).count, 100u);
  const uint64_t sync = rig.start_fsync(kFh);
  EXPECT_FALSE(rig.replier.wait_for(sync, 50)) << "its WRITE waits for a connection";
  EXPECT_TRUE(rig.core->inode_lost(Rig::kIno));
  EXPECT_EQ(rig.replier.wait(sync).error, EIO);
  std::atomic<int> refused = 0;
  for (const auto& target : rig.targets) {
    target->decide([&](const FrameHeader& header) {
      if (static_cast<Op>(header.op) != Op::kWrite) return FakeTarget::Decision{};
      ++refused;
      return FakeTarget::Decision{Fault::kStatus, Status::kFenced};
    });
  }
  rig.set_connecting(true);
  EXPECT_TRUE(eventually([&] { return refused > 0; }));
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.flush(kFh), 0);
}

// ---- refusals ----

TEST(Faults, PassingRefusalsAreAskedAgain) {
  for (const Status status : {Status::kNotReady, Status::kBusy, Status::kNoTarget,
                              Status::kUnknownSession, Status::kChecksum}) {
    Rig rig;
    rig.open(kFh, O_RDWR);
    rig.targets[0]->decide(on(Op::kWrite, {Fault::kStatus, status}, 2));
    EXPECT_EQ(rig.write(kFh, 0, pattern(100, 3)).count, 100u);
    EXPECT_EQ(rig.flush(kFh), 0);
    EXPECT_EQ(rig.targets[0]->count(Op::kWrite), 3u);
  }
}

TEST(Faults, RefusedCapabilityAsksPythonForANewOne) {
  Rig rig;
  rig.open(kFh, O_RDWR, 100);
  rig.targets[0]->decide(on(Op::kRead, {Fault::kStatus, Status::kBadCapability}, 2));
  const uint64_t unique = rig.start_read(kFh, 0, 100);
  const Event event = rig.wait_event(EventKind::kReopen);
  EXPECT_EQ(event.ino, Rig::kIno);
  EXPECT_EQ(event.a, 0);
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(100));
}

TEST(Faults, RefusedCapabilityOfAWriteAsksForTheRightToWrite) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide(on(Op::kWrite, {Fault::kStatus, Status::kBadCapability}, 2));
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 3)).count, 100u);
  EXPECT_EQ(rig.wait_event(EventKind::kReopen).a, 1);
  EXPECT_EQ(rig.flush(kFh), 0);
}

TEST(Faults, FullTargetIsToldToItsWriterOnce) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.open(2, O_RDWR);
  rig.targets[0]->decide(on(Op::kWrite, {Fault::kStatus, Status::kEnospc}));
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 4)).count, 100u);  // behind: found out at close
  EXPECT_EQ(rig.flush(kFh), ENOSPC);
  EXPECT_EQ(rig.flush(kFh), ENOSPC);  // a close may be a child's: it uses nothing up
  EXPECT_EQ(rig.fsync(kFh), ENOSPC);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.write(2, 0, pattern(100, 4)).error, ENOSPC);  // the other handle, once too
  EXPECT_EQ(rig.write(2, 0, pattern(100, 4), O_DIRECT).error, ENOSPC);
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.write(2, 0, pattern(100, 5), O_DIRECT).count, 100u);
  EXPECT_EQ(rig.fsync(2), 0);
}

TEST(Faults, AHandleOpenedAfterTheErrorWasToldDoesNotSeeIt) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide(on(Op::kWrite, {Fault::kStatus, Status::kEio}, 1));
  rig.write(kFh, 0, pattern(100, 4));
  EXPECT_EQ(rig.fsync(kFh), EIO);
  rig.open(2, O_RDWR);
  EXPECT_EQ(rig.fsync(2), 0);
}

// ---- durability ----

TEST(Durability, FsyncSyncsEveryObjectThenCommits) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(300'000, 5);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
  ASSERT_EQ(rig.commits().size(), 1u);
  EXPECT_EQ(rig.commits()[0].size, bytes.size());
  EXPECT_EQ(rig.commits()[0].durable, 1u);
  EXPECT_EQ(rig.commits()[0].stripes, 0b1111u);
  EXPECT_EQ(rig.commits()[0].flags & (kCommitSynced | kCommitSize), kCommitSynced | kCommitSize);
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
}

TEST(Durability, FsyncOfACleanFileStillMakesTheNamespaceDurable) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  EXPECT_EQ(rig.fsync(kFh), 0);
  ASSERT_EQ(rig.commits().size(), 1u);
  EXPECT_EQ(rig.commits()[0].durable, 1u);
  EXPECT_EQ(rig.commits()[0].flags, 0u);
}

TEST(Durability, SyncWriteIsDurableWhenAnswered) {
  Rig rig;
  rig.open(kFh, O_RDWR | O_DSYNC);
  const Bytes bytes = pattern(100'000, 6);
  EXPECT_EQ(rig.write(kFh, 0, bytes).count, bytes.size());
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
  ASSERT_EQ(rig.commits().size(), 1u);
  EXPECT_EQ(rig.commits()[0].durable, 1u);
}

TEST(Durability, WhatATargetLostIsSentAgainAtFsync) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(500'000, 7);
  rig.write(kFh, 0, bytes);
  ASSERT_EQ(rig.flush(kFh), 0);
  for (const auto& target : rig.targets) target->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
}

TEST(Durability, ReadAfterALossSeesTheHeldBytes) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(500'000, 8);
  rig.write(kFh, 0, bytes);
  ASSERT_EQ(rig.flush(kFh), 0);
  for (const auto& target : rig.targets) target->lose_unsynced();
  EXPECT_EQ(rig.read(kFh, 0, 500'000).bytes, bytes);
}

TEST(Durability, OverwrittenBlocksAreSentAgainInTheirOrder) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  Bytes model(10'000);
  for (uint32_t round = 0; round < 20; ++round) {
    const Bytes bytes = pattern(3000, round);
    const size_t at = round * 311 % 7000;
    rig.write(kFh, at, bytes);
    EXPECT_EQ(rig.flush(kFh), 0);
    std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<ptrdiff_t>(at));
    if (round % 6 == 5) rig.targets[0]->lose_unsynced();
  }
  model.resize(rig.read(kFh, 0, 10'000).bytes.size());
  EXPECT_EQ(rig.read(kFh, 0, 10'000).bytes, model);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(model.size(), true), model);
}

TEST(Durability, WhatWasDroppedIsEioAtFsyncOnce) {
  RigSettings settings;
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(100'000, 9));
  ASSERT_EQ(rig.flush(kFh), 0);
  for (const auto& target : rig.targets) target->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.fsync(kFh), 0);
}

TEST(Durability, HeldBytesStayWithinTheirBudget) {
  RigSettings settings;
  settings.core.memory.held_bytes_max = 1u << 20;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  for (uint64_t at = 0; at < 8u << 20; at += 256u << 10) {
    rig.write(kFh, at, pattern(256u << 10, 1));
    EXPECT_LE(rig.account(Buffer::Account::kHeld), 2u << 20);
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
}

// ---- bounds, signals, commits ----

TEST(Bounds, DirtyBytesAreBoundedAndWritersWait) {
  RigSettings settings;
  settings.core.memory.dirty_bytes_max = 8u << 20;
  settings.core.dirty_bytes_per_inode_max = 1u << 20;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  for (const auto& target : rig.targets) target->decide(on(Op::kWrite, {Fault::kStall}));
  std::vector<uint64_t> waiting;
  const Bytes bytes = pattern(64u << 10, 1);
  for (uint64_t index = 0; index < 40; ++index) {
    waiting.push_back(rig.start_write(kFh, index * bytes.size(), bytes));
  }
  EXPECT_TRUE(rig.replier.wait_for(waiting.front(), 1000));
  EXPECT_FALSE(rig.replier.wait_for(waiting.back(), 100));
  for (const auto& target : rig.targets) target->release_stalled();
  for (const uint64_t unique : waiting) EXPECT_EQ(rig.replier.wait(unique).count, bytes.size());
}

// The budget is used up by pieces that left at once: nothing else would ever send the last one.
TEST(Bounds, ASmallWriteWithoutRoomIsSent) {
  RigSettings settings;
  settings.core.memory.dirty_bytes_max = 1u << 20;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  for (const auto& target : rig.targets) target->decide(on(Op::kWrite, {Fault::kStall}));
  const Bytes bytes = pattern(64u << 10, 1);
  uint64_t at = 0;
  for (; at < 8 * bytes.size(); at += bytes.size()) {
    EXPECT_EQ(rig.write(kFh, at, bytes, O_DIRECT).count, bytes.size());
  }
  const uint64_t last = rig.start_write(kFh, at, pattern(5, 2));
  EXPECT_FALSE(rig.replier.wait_for(last, 100));
  for (const auto& target : rig.targets) target->release_stalled();
  const auto reply = rig.replier.wait_for(last, 10'000);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->count, 5u);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.read(kFh, at, 5).bytes, pattern(5, 2));
}

TEST(Signals, InterruptedReadAndWriteEndWithEintr) {
  Rig rig;
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(
      [](const FrameHeader&) -> FakeTarget::Decision { return {Fault::kStall}; });
  const uint64_t read = rig.start_read(kFh, 0, 5000);
  const uint64_t write = rig.start_write(kFh, 0, pattern(100, 1), O_DSYNC);
  EXPECT_TRUE(rig.interrupt(read));
  EXPECT_TRUE(rig.interrupt(write));
  EXPECT_EQ(rig.replier.wait(read).error, EINTR);
  EXPECT_EQ(rig.replier.wait(write).error, EINTR);
  EXPECT_FALSE(rig.interrupt(read));
  EXPECT_FALSE(rig.interrupt(123'456));
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes.size(), 100u);
}

TEST(Signals, AbortFailsEverythingThatWaits) {
  Rig rig;
  rig.open(kFh, O_RDWR, 5000);
  rig.targets[0]->decide(
      [](const FrameHeader&) -> FakeTarget::Decision { return {Fault::kStall}; });
  const uint64_t read = rig.start_read(kFh, 0, 5000);
  rig.write(kFh, 0, pattern(100, 1));
  const uint64_t sync = rig.start_fsync(kFh);
  EXPECT_EQ(rig.core->abort(), 2u);
  EXPECT_EQ(rig.replier.wait(read).error, EIO);
  EXPECT_EQ(rig.replier.wait(sync).error, EIO);
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes.size(), 5000u);
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
}

TEST(Commits, FlushWaitsForTheCommitAndAFailedOneIsTriedAgain) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.hold_commits(true);
  rig.write(kFh, 0, pattern(100, 1));
  const uint64_t first = rig.start_flush(kFh);
  const uint64_t second = rig.start_flush(kFh);
  EXPECT_FALSE(rig.replier.wait_for(second, 100));
  rig.commit_status(Status::kEio);
  rig.hold_commits(false);
  EXPECT_EQ(rig.replier.wait(first).error, EIO);
  rig.commit_status(Status::kOk);
  rig.replier.wait(second);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.commits().back().size, 100u);
  EXPECT_FALSE(rig.core->inode_written(Rig::kIno));
}

// The inode has a list of those who wait for its commit, and each of them holds the inode.
TEST(Commits, WhoWaitsForOneWhenTheClientEndsIsLetGoOf) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.hold_commits(true);
  rig.write(kFh, 0, pattern(100, 1));
  rig.start_flush(kFh);
  const uint64_t second = rig.start_flush(kFh);
  EXPECT_FALSE(rig.replier.wait_for(second, 100));
  const std::weak_ptr<Operation> waiting = rig.core->context().waiting().find(second);
  ASSERT_FALSE(waiting.expired());
  rig.core->stop(0);
  EXPECT_TRUE(waiting.expired());
}

TEST(Commits, ReleaseOfADirtyInodeCommitsBeforeItsEvent) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(100, 1));
  EXPECT_EQ(rig.release(kFh), 0);
  EXPECT_EQ(rig.wait_event(EventKind::kRelease).a, static_cast<int64_t>(kFh));
  EXPECT_EQ(rig.commits().size(), 1u);
  EXPECT_EQ(rig.read(kFh, 0, 10).error, EBADF);
}

TEST(Commits, DrainTellsWhenTheTargetsHaveIt) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(1000, 1));
  EXPECT_EQ(rig.drain(true), 0);
  EXPECT_EQ(rig.file(1000, true), pattern(1000, 1));
  EXPECT_TRUE(rig.commits().empty());
  const auto written = rig.core->inode_take(Rig::kIno);
  ASSERT_TRUE(written);
  EXPECT_EQ(written->size, 1000u);
  EXPECT_FALSE(rig.core->inode_written(Rig::kIno));
}

TEST(Commits, ResizeForgetsWhatLiesBeyond) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(200'000, 1);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.drain(false), 0);
  rig.core->inode_resize(rig.attributes(70'000, 3), rig.layout(1), rig.capability());
  EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes.size(), 70'000u);
  rig.core->inode_resize(rig.attributes(0, 4), rig.layout(1), rig.capability());
  EXPECT_TRUE(rig.read(kFh, 0, 4096).bytes.empty());
  EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
}

// Objects of a new file id were never written: to sync them would call their holes durable.
TEST(Commits, ANewFileIdHasNothingToSync) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(10'000, 1));
  EXPECT_EQ(rig.drain(false), 0);
  Bytes layout = rig.layout();
  Bytes capability = rig.capability();
  const uint64_t file_id = 99;
  std::memcpy(layout.data() + 8, &file_id, sizeof(file_id));
  std::memcpy(capability.data(), &file_id, sizeof(file_id));
  ASSERT_TRUE(rig.core->inode_resize(rig.attributes(0, 5), layout, capability));
  EXPECT_EQ(rig.fsync(kFh), 0);
  for (const auto& target : rig.targets) EXPECT_EQ(target->count(Op::kSync), 0u);
}

TEST(Commits, DroppedInodeGoesOnceNothingHoldsIt) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(1000, 1));
  rig.core->inode_drop(Rig::kIno);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.release(kFh), 0);
  rig.core->inode_drop(Rig::kIno);
  const auto gone = [&] { return !rig.core->handle_put(9, Rig::kIno, 0, false); };
  for (int tries = 0; tries < 1000 && !gone(); ++tries) {  // a lane still looks at its age
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    rig.start_release(9);
    rig.core->inode_drop(Rig::kIno);
  }
  EXPECT_TRUE(gone());
}

TEST(Commits, AnInodeThatIsOpenedWhileItGoesIsThereAgain) {
  constexpr uint64_t kOpens = 300'000;
  Rig rig;
  std::atomic<uint64_t> opened = 0;
  std::thread closing([&] {
    for (uint64_t closed = 0; closed < kOpens;) {
      if (closed < opened)
        rig.core->context().open_files().close_own(++closed);  // it goes, unless it is opened again
    }
  });
  uint64_t unknown = 0;
  for (uint64_t fh = 1; fh <= kOpens; opened = fh++) {
    EXPECT_TRUE(rig.core->inode_put(rig.attributes(0), rig.layout(), rig.capability()));
    if (!rig.core->handle_put(fh, Rig::kIno, O_RDONLY, false)) ++unknown;
    rig.core->inode_drop(Rig::kIno);
  }
  closing.join();
  EXPECT_EQ(unknown, 0u);
}

}  // namespace
}  // namespace braidfs::client::rig
