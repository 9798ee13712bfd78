// Announced files with lanes: which READs are answered from what was fetched, and which never
// (client/prefetching.h). The order and the table are in prefetch/test_announced_order.cpp.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <numeric>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kIno = Rig::kIno;
constexpr uint32_t kSize = 200'000;

class AnnouncedFile : public ::testing::Test {
 protected:
  AnnouncedFile() {
    rig_.core->prefetch(64u << 20, false);
    rig_.store_and_forget(content_);
    EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kRelease).size() == 1; }));
    rig_.core->child_finder([this](uint64_t ino, const Core::UseChild& use) {
      if (ino == kIno && is_granted_)
        use(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability());
    });
  }
  ~AnnouncedFile() override { rig_.core->stop(0); }

  void announce(uint64_t ino = kIno) {
    EXPECT_EQ(rig_.core->announce(std::span(&ino, 1), false), 1u);
  }
  void announce_and_wait() {
    announce();
    EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  }
  void open(uint64_t fh = kOwn) {
    EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability(),
                                        fh, O_RDONLY));
  }
  size_t asked() {
    size_t count = 0;
    for (const auto& target : rig_.targets) count += target->count(Op::kRead);
    return count;
  }
  void stall() {
    for (const auto& target : rig_.targets) {
      target->decide(
          [](const FrameHeader&) { return FakeTarget::Decision{FakeTarget::Fault::kStall}; });
    }
  }
  void go_on() {
    for (const auto& target : rig_.targets) target->release_stalled();
  }

  static constexpr uint64_t kOwn = uint64_t{1} << 62;
  static constexpr size_t kParts = 4;  // chunks of it
  const Bytes content_ = pattern(kSize, 3);
  std::atomic<bool> is_granted_ = true;
  Rig rig_;
};

TEST_F(AnnouncedFile, IsReadWithoutATarget) {
  announce_and_wait();
  EXPECT_EQ(rig_.counter("handles"), 0u);
  EXPECT_TRUE(rig_.forgets_inodes());
  const size_t before = asked();
  open();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize + 4096).bytes, content_);
  EXPECT_EQ(asked(), before);
  EXPECT_EQ(rig_.counter("announced_reads"), 1u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kAnnounced));
  EXPECT_EQ(rig_.events(EventKind::kRelease).size(), 1u) << "Python was not told of it";
}

TEST_F(AnnouncedFile, IsWaitedForWhenItIsUnderWay) {
  stall();
  announce();
  EXPECT_TRUE(eventually([&] { return asked() == kParts; }));
  open();
  const uint64_t unique = rig_.start_read(kOwn, 0, kSize);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 100));
  go_on();
  EXPECT_EQ(rig_.replier.wait(unique).bytes, content_);
  EXPECT_EQ(asked(), kParts);
}

TEST_F(AnnouncedFile, IsReadByItselfWhenItCouldNotBeFetched) {
  std::atomic<bool> fails = true;
  for (const auto& target : rig_.targets) {
    target->decide([&](const FrameHeader&) {
      return fails ? FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kEio}
                   : FakeTarget::Decision{};
    });
  }
  announce();
  EXPECT_TRUE(eventually([&] { return rig_.counter("announced_missed") == 1; }));
  fails = false;
  open();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes, content_);
}

TEST_F(AnnouncedFile, OfAnEarlierVersionIsNotGiven) {
  announce_and_wait();
  EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 3), rig_.layout(), rig_.capability(),
                                      kOwn, O_RDONLY));
  const Bytes other = pattern(kSize, 4);
  for (const auto& target : rig_.targets) target->decide({});
  const size_t before = asked();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes.size(), kSize);
  EXPECT_GT(asked(), before);
}

TEST_F(AnnouncedFile, IsNotGivenWithoutALease) {
  announce_and_wait();
  open();
  rig_.core->inode_lease(kIno, 0, 0);
  const size_t before = asked();
  const uint64_t unique = rig_.start_read(kOwn, 0, kSize);
  EXPECT_TRUE(eventually([&] { return !rig_.events(EventKind::kAsk).empty(); }));
  rig_.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).bytes, content_);
  EXPECT_GT(asked(), before);
}

// A recall takes the file from its directory's grant while it is fetched: the handle that nobody
// has is told of like one of a lane.
TEST_F(AnnouncedFile, TakenFromItsGrantMeanwhileIsTold) {
  stall();
  announce();
  EXPECT_TRUE(eventually([&] { return asked() > 0; }));
  is_granted_ = false;
  EXPECT_EQ(rig_.core->take_granted(kIno), 1u);
  rig_.core->inode_lease(kIno, 0, 0);
  go_on();
  EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kRelease).size() == 2; }));
  EXPECT_EQ(rig_.account(Buffer::Account::kAnnounced), 0u);
}

TEST_F(AnnouncedFile, UnknownOnesArePassedOver) {
  std::vector<uint64_t> inos(5000, 0);
  std::iota(inos.begin(), inos.end(), 1000);
  inos.push_back(kIno);
  EXPECT_EQ(rig_.core->announce(inos, false), inos.size());
  EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  EXPECT_EQ(rig_.counter("announced_missed"), 5000u);
}

}  // namespace
}  // namespace braidfs::client::rig
