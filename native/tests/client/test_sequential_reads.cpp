// Sequential READs of a large file with lanes: what is fetched ahead of them is given, and what is
// never given (client/prefetching.h). The policies and the table are tested in prefetch/.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kIno = Rig::kIno;

class SequentialFile : public ::testing::Test {
 protected:
  static constexpr uint32_t kRead = 256u << 10;
  static constexpr uint64_t kLength = 12u << 20;
  static constexpr uint64_t kBegun = 5u << 20;  // more is fetched when so much was read
  static constexpr uint64_t kOwn = uint64_t{1} << 62;

  SequentialFile() {
    rig_.open(Rig::kFh, O_RDWR, 0);
    rig_.core->prefetch(256u << 20, false);
    rig_.core->lease_until(Clock::now() + std::chrono::hours(1));
    rig_.core->inode_lease(kIno, kLeaseData | kLeaseDataExclusive, 0);
    for (uint64_t at = 0; at < kLength; at += 1u << 20) {
      rig_.write(Rig::kFh, at,
                 Bytes(content_.begin() + static_cast<ptrdiff_t>(at),
                       content_.begin() + static_cast<ptrdiff_t>(at + (1u << 20))));
    }
    EXPECT_EQ(rig_.fsync(Rig::kFh), 0);
    rig_.release(Rig::kFh);
    rig_.core->inode_drop(kIno);
    EXPECT_TRUE(rig_.forgets_inodes());
    EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kLength, 2), rig_.layout(),
                                        rig_.capability(), kOwn, O_RDONLY));
  }
  ~SequentialFile() override { rig_.core->stop(0); }

  Bytes part(uint64_t offset, size_t length = kRead) const {
    const auto from = content_.begin() + static_cast<ptrdiff_t>(offset);
    return {from, from + static_cast<ptrdiff_t>(length)};
  }
  void read(uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; at += kRead) {
      ASSERT_EQ(rig_.read(kOwn, at, kRead).bytes, part(at)) << at;
    }
  }
  size_t asked() {
    size_t count = 0;
    for (const auto& target : rig_.targets) count += target->count(Op::kRead);
    return count;
  }

  const Bytes content_ = pattern(kLength, 3);
  Rig rig_;
};

TEST_F(SequentialFile, EachByteIsAskedForOnce) {
  read(0, kLength);
  EXPECT_EQ(asked(), kLength / (64u << 10)) << "a chunk a time";
  EXPECT_GE(rig_.counter("stream_reads"), (kLength - prefetch::PageHistory::kFirstMin) / kRead);
  EXPECT_EQ(rig_.counter("stream_unused"), 0u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kAnnounced));
}

TEST_F(SequentialFile, WhatCouldNotBeFetchedIsReadByItself) {
  std::atomic<int> failures = 0;
  for (const auto& target : rig_.targets) {
    target->decide([&](const FrameHeader& header) {
      const bool fails = header.offset >= kBegun / 4 && failures++ < 20;
      return fails ? FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kEio}
                   : FakeTarget::Decision{};
    });
  }
  read(0, kBegun);  // what is fetched ahead of these fails
  EXPECT_TRUE(eventually([&] { return rig_.counter("stream_missed") > 0; }));
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  failures = 20;
  read(kBegun, kLength);
}

TEST_F(SequentialFile, OfALeaseThatWasLostNothingIsGiven) {
  read(0, kBegun);
  EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  const uint64_t given = rig_.counter("stream_reads");
  rig_.core->inode_lease(kIno, 0, 0);
  const uint64_t unique = rig_.start_read(kOwn, kBegun, kRead);
  EXPECT_TRUE(eventually([&] { return !rig_.events(EventKind::kAsk).empty(); }));
  rig_.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).bytes, part(kBegun));
  EXPECT_EQ(rig_.counter("stream_reads"), given);
}

TEST_F(SequentialFile, ClosingLetsGo) {
  read(0, kBegun);
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  EXPECT_GT(rig_.account(Buffer::Account::kAnnounced), 0u);
  EXPECT_EQ(rig_.release(kOwn), 0);
  EXPECT_EQ(rig_.account(Buffer::Account::kAnnounced), 0u);
}

}  // namespace
}  // namespace braidfs::client::rig
