// Reads of files with several replicas: whom they ask, and what happens when that one fails.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
constexpr uint64_t kIno = Rig::kIno;
using Fault = FakeTarget::Fault;

FakeTarget::Decide on(Op op, FakeTarget::Decision decision, int times = 1 << 30) {
  auto left = std::make_shared<int>(times);
  return [=](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op != static_cast<uint8_t>(op) || *left <= 0) return {};
    --*left;
    return decision;
  };
}

RigSettings mirrored() {
  RigSettings settings;
  settings.targets = 2;
  settings.replicas = 2;
  settings.chunk_size = 1u << 20;
  settings.core.timeout_ms = 1500;
  settings.core.read_unanswered_ms_max = 200;
  return settings;
}

class ReplicaReads : public ::testing::Test {
 protected:
  explicit ReplicaReads(bool is_durable = true) : rig_(mirrored()) {
    for (const auto& target : rig_.targets) target->put_object(kIno, 0, bytes_);
    rig_.open(kFh, O_RDWR, bytes_.size(), is_durable ? 1 : 0);
    EXPECT_EQ(rig_.read(kFh, 0, 1000).error, 0);  // both are connected from now on
    EXPECT_EQ(rig_.read(kFh, 0, 1000).error, 0);
  }
  FakeTarget& first() { return *rig_.targets[usual_place(kIno, 2)]; }
  FakeTarget& other() { return *rig_.targets[1 - usual_place(kIno, 2)]; }
  Bytes read() { return rig_.read(kFh, 0, 50'000).bytes; }

  const Bytes bytes_ = pattern(50'000, 1);
  Rig rig_;
};

TEST_F(ReplicaReads, OneIsAskedAndFilesAreSpreadOverThem) {
  const size_t before = first().count(Op::kRead) + other().count(Op::kRead);
  EXPECT_EQ(read(), bytes_);
  EXPECT_EQ(first().count(Op::kRead) + other().count(Op::kRead), before + 1);
  size_t at_zero = 0;
  for (uint64_t file_id = 1; file_id <= 1000; ++file_id) at_zero += usual_place(file_id, 2) == 0;
  EXPECT_GT(at_zero, 400u);
  EXPECT_LT(at_zero, 600u);
}

TEST_F(ReplicaReads, ABusyServerIsSpared) {
  first().decide(on(Op::kRead, {Fault::kStall}, 1));
  const uint64_t slow = rig_.start_read(kFh, 0, 50'000);
  EXPECT_FALSE(rig_.replier.wait_for(slow, 50));
  const size_t before = other().count(Op::kRead);
  // The lanes take turns: each second READ is on the lane that the slow one is on.
  for (int reads = 0; reads < 4; ++reads) EXPECT_EQ(read(), bytes_);
  EXPECT_GE(other().count(Op::kRead), before + 2);
  first().release_stalled();
  EXPECT_EQ(rig_.replier.wait(slow).bytes, bytes_);
}

TEST_F(ReplicaReads, TheNextOneIsAskedAtOnce) {
  for (const Status status :
       {Status::kNotReady, Status::kBusy, Status::kUnknownSession, Status::kNoTarget, Status::kEio,
        Status::kCorrupt, Status::kNoObject, Status::kDropped, Status::kBadCapability}) {
    first().decide(on(Op::kRead, {Fault::kStatus, status}));
    const uint64_t unique = rig_.start_read(kFh, 0, 50'000);
    const auto reply = rig_.replier.wait_for(unique, 1000);
    ASSERT_TRUE(reply) << static_cast<int>(status);
    EXPECT_EQ(reply->bytes, bytes_) << static_cast<int>(status);
  }
}

// As if its disk hung: its server is there.
TEST_F(ReplicaReads, OneThatDoesNotAnswerIsNotWaitedFor) {
  const auto lost = [&] { return rig_.counter("connections_lost"); };
  const auto lost_before = lost();
  first().decide(on(Op::kRead, {Fault::kStall}, 1));
  EXPECT_EQ(read(), bytes_);
  EXPECT_EQ(read(), bytes_);
  const size_t asked = first().count(Op::kRead);
  for (int reads = 0; reads < 4; ++reads) EXPECT_EQ(read(), bytes_);
  EXPECT_LE(first().count(Op::kRead), asked + 2) << "by the other lane, which knows nothing of it";
  first().release_stalled();
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(read(), bytes_);
    return first().count(Op::kRead) > asked + 4;
  })) << "it is asked again";
  EXPECT_EQ(lost(), lost_before) << "the late answer is taken off the connection";
}

TEST_F(ReplicaReads, AServerThatEndsIsNotWaitedFor) {
  first().decide(on(Op::kRead, {Fault::kHangUpBefore}));
  EXPECT_EQ(read(), bytes_);
  rig_.refuse_connections(usual_place(kIno, 2), true);
  EXPECT_EQ(read(), bytes_);
  EXPECT_EQ(read(), bytes_);
}

TEST_F(ReplicaReads, DamageIsAskedForOnceMoreWhereItLies) {
  first().decide(on(Op::kRead, {Fault::kFlip}));
  const size_t before = first().count(Op::kRead);
  EXPECT_EQ(read(), bytes_);
  const auto seen = first().seen(Op::kRead);
  ASSERT_EQ(seen.size(), before + 2);
  EXPECT_NE(seen[before].flags & kFlagRaw, 0);
  EXPECT_EQ(seen[before + 1].flags & kFlagRaw, 0) << "the server looks itself, and says so";
}

TEST_F(ReplicaReads, AnErrorOfAllIsAnError) {
  first().decide(on(Op::kRead, {Fault::kStatus, Status::kCorrupt}));
  other().decide(on(Op::kRead, {Fault::kStatus, Status::kNoObject}));
  EXPECT_EQ(rig_.read(kFh, 0, 1000).error, EIO);
}

TEST_F(ReplicaReads, OneThatMayComeBackIsWaitedFor) {
  first().decide(on(Op::kRead, {Fault::kStatus, Status::kNotReady}, 4));
  other().decide(on(Op::kRead, {Fault::kStatus, Status::kCorrupt}));
  EXPECT_EQ(read(), bytes_);
  first().decide(on(Op::kRead, {Fault::kStatus, Status::kNotReady}));
  EXPECT_EQ(rig_.read(kFh, 0, 1000).error, EIO) << "until the deadline";
}

TEST_F(ReplicaReads, AnotherViewIsLookedFor) {
  for (const auto& target : rig_.targets)
    target->decide(on(Op::kRead, {Fault::kStatus, Status::kDropped}, 3));
  rig_.put_rows({{100, 0}, {101, object_number(0, 1)}}, 1);
  rig_.targets[1]->put_object(kIno, object_number(0, 1), bytes_);
  EXPECT_EQ(read(), bytes_);
  EXPECT_FALSE(rig_.events(EventKind::kReopen).empty());
}

// The one that is asked again has another place in the view by then.
TEST_F(ReplicaReads, TheOneThatIsLeftIsWaitedFor) {
  ASSERT_EQ(usual_place(kIno, 2), 1u);
  for (const auto& target : rig_.targets)
    target->decide(on(Op::kRead, {Fault::kStatus, Status::kNotReady}));
  const uint64_t unique = rig_.start_read(kFh, 0, 50'000);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 50));
  rig_.take_row(100);
  rig_.core->view_put(kIno, rig_.layout(0, 1), rig_.capability());
  const size_t before = first().count(Op::kRead);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 300));
  EXPECT_LT(first().count(Op::kRead), before + 10) << "without a rest";
  first().decide(on(Op::kRead, {}));
  EXPECT_EQ(rig_.replier.wait(unique).bytes, bytes_);
}

TEST_F(ReplicaReads, ASeekAsksTheNextOne) {
  first().decide(on(Op::kSeek, {Fault::kStatus, Status::kNotReady}));
  ASSERT_TRUE(rig_.core->seek(4, kIno, 0, true));
  const Event done = rig_.wait_event(EventKind::kDone);
  EXPECT_EQ(done.a, 0);
  EXPECT_EQ(done.b, 50'000);
}

// ---- objects that are missing ----

class MissingObjects : public ReplicaReads {
 protected:
  MissingObjects() : ReplicaReads(false) {
    absent_ = on(Op::kRead, {Fault::kStatus, Status::kNoObject});
  }
  FakeTarget::Decide absent_;
};

TEST_F(MissingObjects, AHoleIsWhereNoReplicaHasOne) {
  first().decide(absent_);
  EXPECT_EQ(read(), bytes_) << "another one has it";
  other().decide(absent_);
  EXPECT_EQ(read(), Bytes(50'000));
  for (const FrameHeader& header : other().seen(Op::kRead))
    EXPECT_NE(header.flags & kFlagMustExist, 0);
}

TEST_F(MissingObjects, OneReplicaIsBelievedIfTheOtherCannotBeAsked) {
  first().decide(absent_);
  other().decide(on(Op::kRead, {Fault::kStatus, Status::kNotReady}));
  EXPECT_EQ(read(), Bytes(50'000));
  other().decide(on(Op::kRead, {Fault::kHangUpBefore}));
  rig_.refuse_connections(1 - usual_place(kIno, 2), true);
  EXPECT_EQ(read(), Bytes(50'000));
}

TEST_F(MissingObjects, ItIsNoHoleWhereTheOtherOneIsDamaged) {
  first().decide(absent_);
  other().decide(on(Op::kRead, {Fault::kStatus, Status::kCorrupt}));
  EXPECT_EQ(rig_.read(kFh, 0, 1000).error, EIO);
}

TEST_F(ReplicaReads, OneIsNotBelievedThatLacksWhatWasDurable) {
  first().decide(on(Op::kRead, {Fault::kStatus, Status::kNoObject}));
  other().decide(on(Op::kRead, {Fault::kStatus, Status::kNotReady}, 3));
  EXPECT_EQ(read(), bytes_) << "the other one is waited for";
}

TEST_F(ReplicaReads, WhatWasDurableIsNoHole) {
  for (const auto& target : rig_.targets)
    target->decide(on(Op::kRead, {Fault::kStatus, Status::kNoObject}));
  EXPECT_EQ(rig_.read(kFh, 0, 1000).error, EIO);
}

}  // namespace
}  // namespace braidfs::client::rig
