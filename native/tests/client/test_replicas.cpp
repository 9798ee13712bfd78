// Written bytes of files with several replicas: who has them when they are acknowledged, what is
// sent again, and which replicas are dropped (docs/decisions/0063-mirrors.md).
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
constexpr uint64_t kIno = Rig::kIno;
using Fault = FakeTarget::Fault;

RigSettings mirrored(uint32_t unreached_ms = 150, uint32_t unanswered_ms = 300) {
  RigSettings settings;
  settings.targets = 2;
  settings.replicas = 2;
  settings.chunk_size = 1u << 20;
  settings.core.unreached_ms_max = unreached_ms;
  settings.core.unanswered_ms_max = unanswered_ms;
  return settings;
}

FakeTarget::Decide on(Op op, FakeTarget::Decision decision, int times = 1 << 30) {
  auto left = std::make_shared<int>(times);
  return [=](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op != static_cast<uint8_t>(op) || *left <= 0) return {};
    --*left;
    return decision;
  };
}

class Replicas : public ::testing::Test {
 protected:
  explicit Replicas(const RigSettings& settings = mirrored()) : rig_(settings) {
    rig_.open(kFh, O_RDWR);
  }
  FakeTarget& target(size_t index) { return *rig_.targets[index]; }
  Bytes object(size_t index) { return target(index).object(kIno, 0); }
  size_t writes(size_t index) { return target(index).count(Op::kWrite); }
  size_t drops() { return rig_.events(EventKind::kDropReplicas).size(); }
  std::vector<uint32_t> epochs(size_t index, Op op) {
    std::vector<uint32_t> epochs;
    for (const FrameHeader& header : target(index).seen(op)) epochs.push_back(header.epoch);
    return epochs;
  }

  const Bytes bytes_ = pattern(100'000, 1);
  Rig rig_;
};

// ---- acknowledgements ----

TEST_F(Replicas, AllOfThemGetTheBytes) {
  EXPECT_EQ(rig_.write(kFh, 0, bytes_).count, bytes_.size());
  EXPECT_EQ(rig_.fsync(kFh), 0);
  for (size_t index = 0; index < 2; ++index) {
    EXPECT_EQ(object(index), bytes_);
    EXPECT_EQ(target(index).durable_object(kIno, 0), bytes_);
    EXPECT_EQ(target(index).count(Op::kSync), 1u);
  }
  ASSERT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(rig_.commits()[0].stripes, 1u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kHeld));
  EXPECT_EQ(drops(), 0u);
}

TEST_F(Replicas, OneOfThemIsNotEnough) {
  target(1).decide(on(Op::kWrite, {Fault::kStall}));
  rig_.write(kFh, 0, bytes_);
  const uint64_t flush = rig_.start_flush(kFh);
  EXPECT_FALSE(rig_.replier.wait_for(flush, 100));
  EXPECT_EQ(object(0), bytes_);
  target(1).release_stalled();
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(object(1), bytes_);
}

TEST_F(Replicas, StripesHaveReplicasOfTheirOwn) {
  RigSettings settings = mirrored();
  settings.targets = 4;
  settings.chunk_size = 64u << 10;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_);
  EXPECT_EQ(rig.fsync(kFh), 0);
  const Bytes first(bytes_.begin(), bytes_.begin() + (64 << 10));
  const Bytes second(bytes_.begin() + (64 << 10), bytes_.end());
  for (const size_t index : {0u, 2u}) EXPECT_EQ(rig.targets[index]->object(kIno, 0), first);
  for (const size_t index : {1u, 3u}) EXPECT_EQ(rig.targets[index]->object(kIno, 1), second);
  EXPECT_EQ(rig.commits()[0].stripes, 3u);
}

// ---- replicas that are dropped ----

TEST_F(Replicas, OneThatIsNotThereIsDroppedAndNobodyIsToldAnError) {
  rig_.refuse_connections(1, true);
  for (uint64_t at = 0; at < 64; ++at)
    EXPECT_EQ(rig_.write(kFh, at * 8192, pattern(4096, 9), O_DIRECT).error, 0);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(object(0).size(), 63u * 8192 + 4096);
  EXPECT_EQ(drops(), 1u) << "one for all pieces";
  const Event event = rig_.wait_event(EventKind::kDropReplicas);
  EXPECT_EQ(event.ino, kIno);
  ASSERT_EQ(event.payload.size(), 12u + 8);
  EXPECT_EQ(event.payload[16], 101);
  EXPECT_EQ(rig_.commits().back().stripes, 1u);
  EXPECT_EQ(rig_.write(kFh, 0, bytes_, O_DIRECT).error, 0);
  EXPECT_EQ(rig_.fsync(kFh), 0);
}

TEST_F(Replicas, OneThatIsBackInTimeStays) {
  RigSettings settings = mirrored(5000);
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_, O_DIRECT);
  rig.refuse_connections(1, true);
  rig.write(kFh, 0, pattern(100'000, 2), O_DIRECT);
  const uint64_t flush = rig.start_flush(kFh);
  EXPECT_FALSE(rig.replier.wait_for(flush, 100));
  rig.refuse_connections(1, false);
  EXPECT_EQ(rig.replier.wait(flush).error, 0);
  EXPECT_EQ(rig.targets[1]->object(kIno, 0), pattern(100'000, 2));
  EXPECT_TRUE(rig.events(EventKind::kDropReplicas).empty());
}

// As the next files do that were meant for a server which is not there, at whichever lane.
TEST_F(Replicas, WhatIsWrittenLaterDoesNotWaitAnew) {
  RigSettings settings = mirrored(3500);
  settings.lanes = 2;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.refuse_connections(1, true);
  for (uint64_t number = 0; number < 3; ++number) {
    const auto begin = Clock::now();
    rig.write(kFh, 0, pattern(100'000, number), O_DIRECT);
    EXPECT_EQ(rig.flush(kFh), 0);
    const bool is_first = number == 0;
    EXPECT_EQ(Clock::now() - begin > std::chrono::milliseconds(3000), is_first) << number;
    EXPECT_EQ(rig.events(EventKind::kDropReplicas).size(), number + 1);
    const auto epoch = static_cast<uint32_t>(number + 1);
    rig.targets[0]->raise_epoch(kIno, 0, epoch);  // so that the file is opened again
    rig.put_rows({{100, 0}, {101, object_number(0, epoch)}}, epoch);
  }
}

// The bytes in flight are bounded: the rest waits behind them.
TEST_F(Replicas, WhatHadNotLeftWhenTheConnectionEndedDoesNotWaitForTheNextOne) {
  const Bytes large = pattern(2u << 20, 3);
  target(1).decide(on(Op::kWrite, {Fault::kStall}));
  for (uint64_t at = 0; at < 24; ++at) rig_.write(kFh, at * large.size(), large);
  const uint64_t flush = rig_.start_flush(kFh);
  ASSERT_TRUE(eventually([&] { return writes(1) > 0; }));
  EXPECT_LT(writes(1), writes(0));
  rig_.refuse_connections(1, true);
  ASSERT_TRUE(rig_.replier.wait_for(flush, 5000));
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(object(0).size(), 24 * large.size());
}

TEST_F(Replicas, OneThatDoesNotServeIsDropped) {
  Rig rig(mirrored(150, 20'000));
  rig.open(kFh, O_RDWR);
  rig.targets[1]->decide(on(Op::kWrite, {Fault::kStatus, Status::kNotReady}));
  rig.write(kFh, 0, bytes_);
  const uint64_t flush = rig.start_flush(kFh);
  ASSERT_TRUE(rig.replier.wait_for(flush, 5000));
  EXPECT_EQ(rig.replier.wait(flush).error, 0);
  EXPECT_EQ(rig.events(EventKind::kDropReplicas).size(), 1u);
  EXPECT_GT(rig.targets[1]->count(Op::kWrite), 1u) << "it is asked for a while";
}

// The server answers a PING, and nothing else.
TEST_F(Replicas, OneThatIsStuckIsDroppedAndItsAnswerIsNotWaitedFor) {
  target(1).decide(on(Op::kWrite, {Fault::kForget}));
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(drops(), 1u);
  EXPECT_EQ(writes(1), 1u);
  EXPECT_EQ(writes(0), 1u);
}

TEST_F(Replicas, OneThatCannotStoreIsDroppedAtOnce) {
  for (const Status status : {Status::kEio, Status::kCorrupt, Status::kErofs, Status::kEnomem,
                              Status::kStaleIncarnation, static_cast<Status>(2000)}) {
    Rig rig(mirrored(10'000, 60'000));
    rig.open(kFh, O_RDWR);
    rig.targets[1]->decide(on(Op::kWrite, {Fault::kStatus, status}));
    rig.write(kFh, 0, bytes_);
    EXPECT_EQ(rig.fsync(kFh), 0) << static_cast<int>(status);
    EXPECT_EQ(rig.events(EventKind::kDropReplicas).size(), 1u);
  }
}

TEST_F(Replicas, TheLastOneTellsItsErrors) {
  rig_.take_row(101);
  ASSERT_TRUE(rig_.core->view_put(kIno, rig_.layout(), rig_.capability()));
  target(0).decide(on(Op::kWrite, {Fault::kStatus, Status::kEio}));
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.fsync(kFh), EIO);
  EXPECT_EQ(drops(), 0u);
  EXPECT_EQ(writes(1), 0u);
}

TEST_F(Replicas, BothFailedMeansThatOneIsLeftAndTellsItsError) {
  for (size_t index = 0; index < 2; ++index)
    target(index).decide(on(Op::kWrite, {Fault::kStatus, Status::kEio}));
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.fsync(kFh), EIO);
  EXPECT_GE(drops(), 1u);
}

TEST_F(Replicas, NoRoomIsTheWritersErrorAndLeavesNoTwoThatDiffer) {
  target(1).decide(on(Op::kWrite, {Fault::kStatus, Status::kEnospc}));
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.fsync(kFh), ENOSPC);
  EXPECT_TRUE(eventually([&] { return drops() == 1; }));
}

TEST_F(Replicas, WhoIsNotDroppedIsAskedAgain) {
  rig_.answer_drops(false);
  rig_.refuse_connections(1, true);
  rig_.write(kFh, 0, bytes_);
  const uint64_t flush = rig_.start_flush(kFh);
  EXPECT_TRUE(eventually([&] { return drops() == 1; }));
  EXPECT_FALSE(rig_.replier.wait_for(flush, 300));
  EXPECT_EQ(drops(), 1u) << "nor is the metaserver asked all the time";
  rig_.refuse_connections(1, false);
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(object(1), bytes_);
}

// ---- other views ----

TEST_F(Replicas, ARefusedEpochIsSentAgainOnlyWhereItWasRefused) {
  target(1).raise_epoch(kIno, 0, 5);
  rig_.put_rows({{100, 0}, {101, 0}}, 5);
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.flush(kFh), 0);
  EXPECT_EQ(epochs(0, Op::kWrite), (std::vector<uint32_t>{0}));
  EXPECT_EQ(epochs(1, Op::kWrite), (std::vector<uint32_t>{0, 5}));
  EXPECT_EQ(object(1), bytes_);
}

TEST_F(Replicas, AWriteIsNotSentAgainBesideItsFormerCall) {
  target(0).decide(on(Op::kWrite, {Fault::kStall}));
  target(1).raise_epoch(kIno, 0, 5);
  rig_.put_rows({{100, 0}, {101, 0}}, 5);
  rig_.write(kFh, 0, bytes_);
  const uint64_t flush = rig_.start_flush(kFh);
  EXPECT_TRUE(eventually([&] { return !rig_.events(EventKind::kReopen).empty(); }));
  EXPECT_FALSE(rig_.replier.wait_for(flush, 200));
  EXPECT_EQ(writes(0), 1u);
  target(0).release_stalled();
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(epochs(0, Op::kWrite), (std::vector<uint32_t>{0}));
  EXPECT_EQ(epochs(1, Op::kWrite), (std::vector<uint32_t>{0, 5}));
}

TEST_F(Replicas, WhereTheNameWasDroppedNothingIsSentAgain) {
  target(1).decide(on(Op::kWrite, {Fault::kStatus, Status::kDropped}));
  rig_.take_row(101);
  rig_.write(kFh, 0, bytes_);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(writes(1), 1u);
  EXPECT_EQ(writes(0), 1u);
  EXPECT_EQ(drops(), 0u);
}

TEST_F(Replicas, AReplicaThatIsNewInTheViewGetsWhatIsOnItsWay) {
  RigSettings settings = mirrored();
  settings.targets = 3;
  settings.replicas = 2;  // of one stripe: the third target has none at first
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.targets[0]->raise_epoch(kIno, 0, 5);
  rig.put_rows({{100, 0}, {102, object_number(0, 1)}}, 5);
  rig.write(kFh, 0, bytes_);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.targets[0]->object(kIno, 0), bytes_);
  EXPECT_EQ(rig.targets[2]->durable_object(kIno, object_number(0, 1)), bytes_);
}

TEST_F(Replicas, AViewSwitchInTheMiddleLosesNoPiece) {
  for (size_t index = 0; index < 2; ++index) target(index).decide(on(Op::kWrite, {Fault::kStall}));
  rig_.write(kFh, 0, bytes_);
  const uint64_t flush = rig_.start_flush(kFh);
  EXPECT_TRUE(eventually([&] { return writes(0) == 1 && writes(1) == 1; }));
  rig_.take_row(100);
  ASSERT_TRUE(rig_.core->view_put(kIno, rig_.layout(1), rig_.capability()));
  EXPECT_FALSE(rig_.replier.wait_for(flush, 50));
  EXPECT_GT(rig_.account(Buffer::Account::kDirty), 0u);
  for (size_t index = 0; index < 2; ++index) target(index).release_stalled();
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(object(1), bytes_);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(target(0).count(Op::kSync), 0u) << "it is not in the view any more";
}

// ---- durability ----

TEST_F(Replicas, WhatOneLostIsSentAgainToThatOneAlone) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.flush(kFh), 0);
  target(1).lose_unsynced();
  EXPECT_EQ(rig_.fsync(kFh), 0);
  for (size_t index = 0; index < 2; ++index)
    EXPECT_EQ(target(index).durable_object(kIno, 0), bytes_);
  EXPECT_EQ(writes(0), 1u);
  EXPECT_EQ(writes(1), 2u);
  EXPECT_EQ(drops(), 0u);
}

TEST_F(Replicas, WhatAFirstOneLostWhileASecondOneIsWaitedForIsSentAgain) {
  const auto punched = on(Op::kPunch, {Fault::kStatus, Status::kOk});
  target(0).decide(punched);
  target(1).decide([=](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op == static_cast<uint8_t>(Op::kWrite)) return {Fault::kStall};
    return punched(header);
  });
  rig_.write(kFh, 0, bytes_);
  const uint64_t flush = rig_.start_flush(kFh);
  EXPECT_TRUE(eventually([&] { return !object(0).empty() && writes(1) == 1; }));
  target(0).lose_unsynced();
  ASSERT_TRUE(rig_.core->punch(9, kIno, 500'000, 504'096));  // an answer tells the incarnation
  EXPECT_TRUE(eventually([&] { return target(0).count(Op::kPunch) == 1; }));
  target(1).release_stalled();
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  EXPECT_EQ(object(0), bytes_);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(target(0).durable_object(kIno, 0), bytes_);
}

// The first replica has the second piece and lost the first one; the other one lacks the second.
TEST(PieceTable, WhatIsSentAgainGoesBehindAnEarlierPieceThatWasLostAtEveryReplica) {
  FileView view;
  view.file_id = kIno;
  view.stripe_width = 1;
  view.chunk_size = 1u << 20;
  view.places = 2;
  view.is_replicated = true;
  view.rows = {{100, 0}, {101, 0}};
  PieceTable table;
  Actions actions;
  table.see(view, actions);
  const auto written = [&] {
    auto piece = std::make_shared<Piece>();
    piece->capacity = 8192;
    piece->end = 4096;
    piece->file_id = kIno;
    table.add(piece, actions);
    table.seal(piece, actions);
    return piece;
  };
  const PiecePtr first = written();
  for (const Replica& replica : view.rows) first->acknowledged.note(replica, 1);
  table.acknowledged(first, actions);
  const PiecePtr second = written();
  ASSERT_EQ(second->state, PieceState::kInFlight);
  second->acknowledged.note(view.rows[0], 2);
  table.target_lost(100, 2, actions);
  table.send_again(second, actions);
  EXPECT_EQ(first->state, PieceState::kInFlight);
  EXPECT_EQ(second->state, PieceState::kQueued);
  EXPECT_TRUE(second->acknowledged.all().empty()) << "else replicas differ";
}

TEST_F(Replicas, OneThatLostWhatIsNotHeldIsDropped) {
  RigSettings settings = mirrored();
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_);
  ASSERT_EQ(rig.flush(kFh), 0);
  rig.targets[1]->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.events(EventKind::kDropReplicas).size(), 1u);
  EXPECT_EQ(rig.targets[0]->durable_object(kIno, 0), bytes_);
  EXPECT_EQ(rig.commits().back().stripes, 1u);
}

TEST_F(Replicas, WhatAllLostAndNobodyHoldsIsAnError) {
  RigSettings settings = mirrored();
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_);
  ASSERT_EQ(rig.flush(kFh), 0);
  for (const auto& target : rig.targets) target->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.fsync(kFh), 0);
}

// It is a copy of what was left.
TEST_F(Replicas, AReplicaThatCameLaterDoesNotHaveWhatWasLost) {
  RigSettings settings = mirrored();
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.take_row(101);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_);
  ASSERT_EQ(rig.flush(kFh), 0);
  rig.targets[0]->lose_unsynced();
  rig.put_rows({{100, 0}, {101, object_number(0, 1)}}, 1);
  rig.core->view_put(kIno, rig.layout(1), rig.capability());
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.fsync(kFh), 0);
  for (const auto& commit : rig.commits()) EXPECT_EQ(commit.stripes, 0u);
}

// Another one had made it durable, and is in the layout no more.
TEST_F(Replicas, AStripeIsNotCalledDurableWhoseOnlyReplicaHasLostIt) {
  RigSettings settings = mirrored(10'000, 10'000);
  settings.core.memory.held_bytes_max = 0;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, bytes_);
  ASSERT_EQ(rig.flush(kFh), 0);
  rig.targets[1]->decide(on(Op::kSync, {Fault::kStatus, Status::kNotReady}, 4));
  rig.open(kFh + 1, O_RDWR);
  const uint64_t fsync = rig.start_fsync(kFh);
  const uint64_t other = rig.start_fsync(kFh + 1);  // only one of them sees the loss
  EXPECT_FALSE(rig.replier.wait_for(fsync, 50));
  EXPECT_EQ(rig.targets[0]->durable_object(kIno, 0), bytes_);
  rig.take_row(100);
  rig.core->view_put(kIno, rig.layout(), rig.capability());
  rig.targets[1]->lose_unsynced();
  EXPECT_EQ(rig.replier.wait(fsync).error, EIO);
  EXPECT_EQ(rig.replier.wait(other).error, EIO);
  for (const auto& commit : rig.commits()) EXPECT_EQ(commit.stripes, 0u);
}

// It would make durable what the former view knows, and not what was added.
TEST_F(Replicas, ASyncKeepsItsEpoch) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.flush(kFh), 0);
  for (size_t index = 0; index < 2; ++index) target(index).raise_epoch(kIno, 0, 5);
  rig_.put_rows({{100, 0}, {101, 0}}, 5);
  target(1).decide(on(Op::kSync, {Fault::kHangUpBefore}, 1));
  EXPECT_EQ(rig_.fsync(kFh), 0);
  const auto seen = epochs(1, Op::kSync);
  EXPECT_EQ(std::ranges::count(seen, 5u), 1);
  EXPECT_EQ(epochs(0, Op::kSync), (std::vector<uint32_t>{0, 5}));
}

TEST_F(Replicas, ASyncThatOneDoesNotAnswerDropsIt) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.flush(kFh), 0);
  target(1).decide(on(Op::kSync, {Fault::kForget}));
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_EQ(drops(), 1u);
  EXPECT_EQ(rig_.commits().back().stripes, 1u) << "the one that is left has it";
}

// ---- what the metaserver is told ----

TEST_F(Replicas, ACommitNamesTheIncarnations) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.flush(kFh), 0);
  const std::vector<std::pair<uint32_t, uint64_t>> both{{100, 1}, {101, 1}};
  EXPECT_EQ(rig_.commits().back().acknowledged, both);
  EXPECT_EQ(rig_.fsync(kFh), 0);
  EXPECT_TRUE(rig_.commits().back().acknowledged.empty()) << "nothing is unsynced";
}

TEST_F(Replicas, ACommitThatComesTooLateIsRepeatedWhenTheBytesAreThereAgain) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.drain(false), 0);
  target(1).lose_unsynced();
  rig_.refuse_commit_once(Status::kStaleIncarnation);
  EXPECT_EQ(rig_.flush(kFh), 0);
  EXPECT_EQ(rig_.commits().size(), 2u);
  EXPECT_EQ(object(1), bytes_);
  EXPECT_EQ(writes(0), 1u);
}

TEST_F(Replicas, AClosedFileIsReportedWhenItIsSynced) {
  RigSettings settings = mirrored();
  settings.core.sync_after_ms = 50;
  Rig rig(settings);
  rig.open(kFh, O_RDWR);
  EXPECT_FALSE(rig.core->closed_unsynced(kIno)) << "nothing was written";
  rig.targets[1]->decide(on(Op::kSync, {Fault::kStall}));
  rig.write(kFh, 0, bytes_);
  EXPECT_EQ(rig.release(kFh), 0);
  EXPECT_TRUE(rig.core->closed_unsynced(kIno));
  EXPECT_TRUE(eventually([&] { return rig.targets[1]->count(Op::kSync) == 1; }));
  EXPECT_TRUE(rig.events(EventKind::kSynced).empty());
  rig.targets[1]->release_stalled();
  EXPECT_EQ(rig.wait_event(EventKind::kSynced).ino, kIno);
  EXPECT_FALSE(rig.core->closed_unsynced(kIno));
}

// ---- other changes ----

TEST_F(Replicas, AHoleIsMadeInAll) {
  rig_.write(kFh, 0, bytes_);
  ASSERT_EQ(rig_.drain(true), 0);
  for (size_t index = 0; index < 2; ++index)
    target(index).decide(on(Op::kPunch, {Fault::kStatus, Status::kOk}));
  ASSERT_TRUE(rig_.core->punch(5, kIno, 0, 8192));
  EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kDone).size() == 2; }));
  for (size_t index = 0; index < 2; ++index) {
    EXPECT_EQ(target(index).count(Op::kPunch), 1u);
    EXPECT_EQ(target(index).count(Op::kSync), 2u);
  }
}

TEST_F(Replicas, ServersDoNotCopyByThemselves) {
  ASSERT_TRUE(rig_.core->copy(6, {kIno, 0}, {kIno, 1u << 20}, 1u << 20, true));
  const Event done = rig_.wait_event(EventKind::kDone);
  EXPECT_EQ(done.a, 0);
  EXPECT_EQ(done.b, 0);
}

}  // namespace
}  // namespace braidfs::client::rig
