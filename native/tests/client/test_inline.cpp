// Tiny files that lie in their inode's record: bytes that go with a birth, and READs that ask no
// target (docs/decisions/0037-inline-data.md).
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>

#include "rig.h"

namespace braidfs::client {
namespace {

using rig::Bytes;
using rig::FakeTarget;
using rig::pattern;
using rig::Rig;

constexpr uint32_t kMost = limits::kInlineLengthMax;
constexpr size_t kCommitHead = 24;

class Inline : public testing::Test {
 protected:
  Inline() : rig_({.targets = 1}) { rig_.core->inline_length(kMost); }

  void bear(uint32_t flags = O_WRONLY) {
    ASSERT_TRUE(
        rig_.core->born(rig_.attributes(0), rig_.layout(), rig_.capability(), {Rig::kFh, flags}));
  }
  // Python has taken the birth already, and may still add to it.
  names::BirthSince take() { return rig_.core->birth_take(Rig::kIno).value(); }
  // The bytes that came with the last COMMIT.
  std::string told() {
    const auto events = rig_.events(EventKind::kCommit);
    return events.empty() ? std::string() : events.back().payload.substr(kCommitHead);
  }
  static std::string text(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  Bytes inline_layout(const Bytes& bytes) {
    Bytes record = rig_.layout();
    record[20] = std::byte{1};
    record.insert(record.end(), bytes.begin(), bytes.end());
    return record;
  }
  // pattern(100, 1), and pattern(100, 2) over it from byte 50 on.
  static Bytes written_again() {
    Bytes expected = pattern(100, 1);
    expected.resize(50);
    const Bytes more = pattern(100, 2);
    expected.insert(expected.end(), more.begin(), more.end());
    return expected;
  }
  size_t writes() { return rig_.targets[0]->count(Op::kWrite); }

  Rig rig_;
};

TEST_F(Inline, GoesWithTheBirthThatNobodyHasTaken) {
  bear();
  const Bytes bytes = pattern(100, 1);
  rig_.write(Rig::kFh, 0, bytes);
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.read(Rig::kFh, 0, 4096).bytes, bytes);
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  const names::BirthSince birth = take();
  EXPECT_EQ(birth.inline_bytes, text(bytes));
  EXPECT_EQ(birth.size, 100u);
  EXPECT_EQ(birth.changes, 1u);
  EXPECT_FALSE(birth.is_open);
  EXPECT_TRUE(rig_.commits().empty());
  EXPECT_EQ(writes(), 0u);
  EXPECT_EQ(rig_.counter("inline_births"), 1u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kDirty));
  rig_.core->inode_drop(Rig::kIno);
  EXPECT_TRUE(rig_.forgets_inodes());
}

TEST_F(Inline, WhatIsWrittenAfterAFirstCommitGoesToTheTargets) {
  bear();
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  rig_.write(Rig::kFh, 5000, pattern(100, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  const names::BirthSince birth = take();
  EXPECT_EQ(birth.inline_bytes, "");
  EXPECT_EQ(birth.size, 5100u);
  EXPECT_EQ(writes(), 1u);
}

TEST_F(Inline, GoesWithTheBirthWhenItIsClosed) {
  bear();
  take();
  const Bytes bytes = pattern(100, 1);
  EXPECT_EQ(rig_.write(Rig::kFh, 0, bytes).count, 100u);
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(told(), text(bytes));
  EXPECT_EQ(rig_.read(Rig::kFh, 0, 4096).bytes, bytes);
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  EXPECT_EQ(rig_.commits().at(0).size, 100u);
  EXPECT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(writes(), 0u);
  EXPECT_EQ(rig_.counter("inline_births"), 1u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kDirty));
  rig_.core->inode_drop(Rig::kIno);
  EXPECT_TRUE(rig_.forgets_inodes());
}

TEST_F(Inline, GoesToTheTargetsWhenItCameTooLate) {
  rig_.commit_status(Status::kStaleMapEpoch);
  bear();
  take();
  const Bytes bytes = pattern(100, 1);
  rig_.write(Rig::kFh, 0, bytes);
  EXPECT_NE(rig_.flush(Rig::kFh), 0) << "that of the second COMMIT";
  EXPECT_EQ(rig_.commits().size(), 2u);
  EXPECT_EQ(told(), "") << "the second one is as any";
  EXPECT_EQ(rig_.commits().at(1).size, 100u);
  EXPECT_EQ(rig_.file(100), bytes);
  EXPECT_EQ(rig_.counter("inline_births"), 0u);
}

TEST_F(Inline, OnceToldItIsAFileAsAny) {
  bear();
  take();
  rig_.write(Rig::kFh, 0, pattern(100, 1));
  const uint64_t ino = Rig::kIno;
  rig_.core->creations_reported(std::span(&ino, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(writes(), 1u);
  EXPECT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(told(), "");
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  EXPECT_EQ(rig_.commits().size(), 1u);
}

// The question is an OPEN, which has the metaserver move the bytes to the targets.
TEST_F(Inline, AWriteAfterThatAsksFirst) {
  bear();
  take();
  rig_.write(Rig::kFh, 0, pattern(100, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  const uint64_t unique = rig_.start_write(Rig::kFh, 50, pattern(100, 2));
  rig_.wait_event(EventKind::kAsk);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 20));
  rig_.targets[0]->put_object(Rig::kIno, 0, pattern(100, 1));
  ASSERT_TRUE(rig_.core->inode_put(rig_.attributes(100, 3), rig_.layout(1, 1), rig_.capability()));
  rig_.core->inode_asked(Rig::kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).count, 100u);
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.file(150), written_again());
  EXPECT_EQ(told(), "");
}

TEST_F(Inline, AWriteWhileItIsHandedOverAsksToo) {
  rig_.hold_commits(true);
  bear();
  take();
  rig_.write(Rig::kFh, 0, pattern(100, 1));
  const uint64_t flush = rig_.start_flush(Rig::kFh);
  EXPECT_FALSE(rig_.replier.wait_for(flush, 20));
  const uint64_t unique = rig_.start_write(Rig::kFh, 50, pattern(100, 2));
  rig_.wait_event(EventKind::kAsk);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 20));
  // The OPEN may be answered before the lane hears that the bytes were taken.
  rig_.targets[0]->put_object(Rig::kIno, 0, pattern(100, 1));
  ASSERT_TRUE(rig_.core->inode_put(rig_.attributes(100, 3), rig_.layout(1, 1), rig_.capability()));
  rig_.hold_commits(false);
  EXPECT_EQ(rig_.replier.wait(flush).error, 0);
  rig_.core->inode_asked(Rig::kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).count, 100u);
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.file(150), written_again());
}

TEST_F(Inline, SyncedItIsCommittedDurably) {
  bear();
  take();
  const Bytes bytes = pattern(10, 1);
  rig_.write(Rig::kFh, 0, bytes);
  EXPECT_EQ(rig_.fsync(Rig::kFh), 0);
  ASSERT_EQ(rig_.commits().size(), 2u);
  EXPECT_EQ(rig_.commits().at(0).durable, 0u);
  EXPECT_EQ(rig_.commits().at(1).durable, 1u);
  EXPECT_EQ(writes(), 0u);
  EXPECT_EQ(rig_.targets[0]->count(Op::kSync), 0u);
}

TEST_F(Inline, OnlyWhatIsOneSmallPiece) {
  const auto goes_to_targets = [&](auto write) {
    bear();
    take();
    write();
    EXPECT_EQ(rig_.flush(Rig::kFh), 0);
    EXPECT_GT(writes(), 0u);
    EXPECT_EQ(rig_.release(Rig::kFh), 0);
    EXPECT_EQ(told(), "");
  };
  goes_to_targets([&] { rig_.write(Rig::kFh, 0, pattern(kMost + 1, 1)); });
}

TEST_F(Inline, HolesGoToTheTargets) {
  bear();
  take();
  rig_.write(Rig::kFh, 10, pattern(10, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(writes(), 1u);
}

TEST_F(Inline, AnEvictedSessionTellsNothing) {
  bear();
  take();
  rig_.write(Rig::kFh, 0, pattern(10, 1));
  EXPECT_TRUE(rig_.core->inode_lost(Rig::kIno));
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  EXPECT_EQ(rig_.commits().size(), 0u);
  EXPECT_EQ(writes(), 0u);
}

TEST_F(Inline, ReadsAskNoTarget) {
  const Bytes bytes = pattern(100, 3);
  ASSERT_TRUE(rig_.core->inode_put(rig_.attributes(5000), inline_layout(bytes), rig_.capability()));
  ASSERT_TRUE(rig_.core->handle_put(Rig::kFh, Rig::kIno, O_RDONLY, false));
  Bytes expected = bytes;
  expected.resize(5000);
  EXPECT_EQ(rig_.read(Rig::kFh, 0, 8192).bytes, expected);
  EXPECT_EQ(rig_.read(Rig::kFh, 90, 20).bytes,
            Bytes(expected.begin() + 90, expected.begin() + 110));
  EXPECT_EQ(rig_.read(Rig::kFh, 100, 4096).bytes, Bytes(4096));
  EXPECT_EQ(rig_.read(Rig::kFh, 4999, 4096).bytes, Bytes(1));
  EXPECT_TRUE(rig_.read(Rig::kFh, 5000, 4096).bytes.empty());
  EXPECT_EQ(rig_.counter("inline_reads"), 4u);
  EXPECT_EQ(rig_.targets[0]->count(Op::kRead), 0u);
}

TEST_F(Inline, AnotherViewTakesItsPlace) {
  ASSERT_TRUE(
      rig_.core->inode_put(rig_.attributes(9), inline_layout(pattern(9, 3)), rig_.capability()));
  ASSERT_TRUE(rig_.core->handle_put(Rig::kFh, Rig::kIno, O_RDONLY, false));
  rig_.targets[0]->put_object(Rig::kIno, 0, pattern(9, 4));
  ASSERT_TRUE(rig_.core->inode_put(rig_.attributes(9, 2), rig_.layout(1, 1), rig_.capability()));
  EXPECT_EQ(rig_.read(Rig::kFh, 0, 100).bytes, pattern(9, 4));
}

TEST(InlineRecords, AreOfTheirLengthAndFlag) {
  Rig rig({.targets = 2});
  const Bytes bare = rig.layout();
  const auto fits = [&](uint8_t flag, size_t more) {
    Bytes record = bare;
    record[20] = std::byte{flag};
    record.resize(bare.size() + more, std::byte{7});
    const auto view = decode_view(record, rig.capability());
    if (view) {
      EXPECT_EQ(view->inline_bytes, std::string(more, '\7'));
    }
    return view.has_value();
  };
  EXPECT_TRUE(fits(0, 0));
  EXPECT_FALSE(fits(1, 0));
  EXPECT_FALSE(fits(0, 1));
  EXPECT_TRUE(fits(1, 1));
  EXPECT_TRUE(fits(1, kMost));
  EXPECT_FALSE(fits(1, kMost + 1));
}

TEST(InlineKept, AreBounded) {
  Rig rig({.targets = 1});
  Bytes record = rig.layout();
  record[20] = std::byte{1};
  record.resize(record.size() + kMost, std::byte{7});
  uint64_t kept = 0;
  for (uint64_t ino = 1; ino <= 20'000; ++ino) {
    Bytes attributes = rig.attributes(kMost);
    std::memcpy(attributes.data(), &ino, sizeof ino);
    ASSERT_TRUE(rig.core->inode_put(attributes, record, rig.capability()));
    kept += rig.core->inode_keep(ino) ? 1 : 0;
  }
  EXPECT_EQ(kept, (64u << 20) / kMost);
  EXPECT_EQ(rig.core->inode_unkeep(1), 0u);
  EXPECT_TRUE(rig.core->inode_keep(20'000));
}

}  // namespace
}  // namespace braidfs::client
