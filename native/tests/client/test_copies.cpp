// COPY from the client's side: what can be copied at the targets, and what becomes of refusals.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kChunk = 64u << 10;
constexpr uint64_t kRow = 4 * kChunk;  // over all targets

// Within one file: what lies a row further is on the same target.
class Copies : public ::testing::Test {
 protected:
  void SetUp() override {
    rig_.open(Rig::kFh, O_RDWR);
    rig_.write(Rig::kFh, 0, bytes_);
    ASSERT_EQ(rig_.fsync(Rig::kFh), 0);
  }
  Event copy(uint64_t from, uint64_t to, uint64_t length, bool only_reach = false) {
    const uint64_t token = ++token_;
    EXPECT_TRUE(rig_.core->copy(token, {Rig::kIno, from}, {Rig::kIno, to}, length, only_reach));
    Event done;
    EXPECT_TRUE(eventually([&] {
      for (const Event& event : rig_.events(EventKind::kDone)) {
        if (event.token == token) done = event;
      }
      return done.token == token;
    }));
    return done;
  }
  size_t count(Op op) {
    size_t sum = 0;
    for (const auto& target : rig_.targets) sum += target->count(op);
    return sum;
  }
  // The n-th request of that kind gets this answer.
  void refuse(Op op, int nth, Status status) {
    auto left = std::make_shared<std::atomic<int>>(nth);
    for (const auto& target : rig_.targets) {
      target->decide([=](const FrameHeader& header) -> FakeTarget::Decision {
        if (header.op != static_cast<uint8_t>(op) || --*left != 0) return {};
        return {FakeTarget::Fault::kStatus, status};
      });
    }
  }

  Rig rig_;
  uint64_t token_ = 100;
  const Bytes bytes_ = pattern(2 * kRow, 11);
};

TEST_F(Copies, GoFromTargetToTargetAndAreDurable) {
  const Event done = copy(0, 2 * kRow, 2 * kRow);
  EXPECT_EQ(done.a, 0);
  EXPECT_EQ(done.b, 0b1111) << "the stripes that were written";
  Bytes twice = bytes_;
  twice.insert(twice.end(), bytes_.begin(), bytes_.end());
  EXPECT_EQ(rig_.file(4 * kRow, true), twice);
  EXPECT_EQ(count(Op::kCopy), 8u);
  for (const auto& target : rig_.targets) {
    for (const FrameHeader& header : target->seen(Op::kCopy)) {
      EXPECT_EQ(header.length, kChunk);
      EXPECT_EQ(header.body_length, 2 * sizeof(Capability) + sizeof(CopySource));
    }
  }
}

TEST_F(Copies, ReachAsFarAsTheTargetsAreOfOneServer) {
  EXPECT_EQ(copy(4096, kRow + 4096, kRow, true).b, static_cast<int64_t>(kRow));
  EXPECT_EQ(copy(0, kRow + kChunk, kRow, true).b, 0) << "each chunk on another server";
  EXPECT_EQ(copy(0, kRow + 4096, kRow, true).b, static_cast<int64_t>(kChunk - 4096));
  EXPECT_EQ(count(Op::kCopy), 0u);
  EXPECT_EQ(copy(0, kRow + kChunk, kRow).a, EIO) << "nobody asked whether it can be";
}

TEST_F(Copies, AreMadeAgainWhenATargetLostThem) {
  refuse(Op::kSync, 1, Status::kStaleIncarnation);
  EXPECT_EQ(copy(0, 2 * kRow, 2 * kRow).a, 0);
  EXPECT_EQ(count(Op::kCopy), 16u);
}

TEST_F(Copies, TellWhatATargetRefuses) {
  refuse(Op::kCopy, 3, Status::kEnospc);
  EXPECT_EQ(copy(0, 2 * kRow, 2 * kRow).a, ENOSPC);
  refuse(Op::kCopy, 1, Status::kCorrupt);
  EXPECT_EQ(copy(0, 2 * kRow, 2 * kRow).a, EIO);
}

TEST_F(Copies, WaitForAServerThatIsBusyOrGone) {
  refuse(Op::kCopy, 2, Status::kBusy);
  EXPECT_EQ(copy(0, 2 * kRow, kRow).a, 0);
  EXPECT_EQ(count(Op::kCopy), 5u);
  for (const auto& target : rig_.targets) target->hang_up();
  EXPECT_EQ(copy(0, 2 * kRow, kRow).a, 0);
}

TEST_F(Copies, OfWholeBlocksAlone) {
  Core& core = *rig_.core;
  EXPECT_FALSE(core.copy(5, {Rig::kIno, 100}, {Rig::kIno, kRow}, 4096, false));
  EXPECT_FALSE(core.copy(5, {Rig::kIno, 0}, {Rig::kIno, 100}, 4096, false));
  EXPECT_FALSE(core.copy(5, {Rig::kIno, 0}, {Rig::kIno, kRow}, 100, false));
  EXPECT_FALSE(core.copy(5, {Rig::kIno, 0}, {Rig::kIno, kRow}, 0, false));
  EXPECT_FALSE(core.copy(5, {Rig::kIno, uint64_t{1} << 63}, {Rig::kIno, kRow}, 4096, false));
  EXPECT_FALSE(core.copy(5, {Rig::kIno + 1, 0}, {Rig::kIno, kRow}, 4096, false));
}

}  // namespace
}  // namespace braidfs::client::rig
