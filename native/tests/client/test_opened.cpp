// Small files that are fetched as they are opened (client/opened_fetch.h).
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kIno = Rig::kIno;
constexpr size_t kSize = 200'000;
using prefetch::WholeSmallFiles;

class OpenedFile : public ::testing::Test {
 protected:
  OpenedFile() {
    rig_.store_and_forget(content_);
    rig_.core->prefetch(64u << 20, true);
  }
  ~OpenedFile() override { rig_.core->stop(0); }

  void open(uint64_t fh) {
    ASSERT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability(),
                                        fh, O_RDONLY));
  }
  // Until files are taken for such that are read whole.
  void convince() {
    for (uint64_t fh = 1000; fh <= 1000 + WholeSmallFiles::kScoreEnough;
         ++fh) {  // the last one by its turn
      open(fh);
      ASSERT_EQ(rig_.start_fetch(fh), 0u);
      for (int lane = 0; lane < 2; ++lane)
        ASSERT_EQ(rig_.read(fh, 0, kSize).bytes, content_);  // connects both
      rig_.release(fh);
      ASSERT_TRUE(rig_.forgets_inodes());
    }
    ASSERT_EQ(rig_.counter("opens_stored"), 0u);
  }
  // Opened, and being fetched.
  uint64_t fetched() {
    open(kOwn);
    const uint64_t unique = rig_.start_fetch(kOwn);
    EXPECT_NE(unique, 0u);
    return unique;
  }
  void stall() {
    for (const auto& target : rig_.targets) {
      target->decide([this](const FrameHeader&) {
        return stalls_ ? FakeTarget::Decision{FakeTarget::Fault::kStall} : FakeTarget::Decision{};
      });
    }
  }
  // A fetch that stands still, once files are known to be read whole.
  uint64_t stalled() {
    convince();
    stalls_ = true;
    stall();
    return fetched();
  }
  void go_on() {
    stalls_ = false;
    for (const auto& target : rig_.targets) target->release_stalled();
  }

  static constexpr uint64_t kOwn = uint64_t{1} << 62;
  const Bytes content_ = pattern(kSize, 3);
  std::atomic<bool> stalls_ = false;
  Rig rig_;
};

TEST_F(OpenedFile, IsInTheKernelsPagesWhenItsOpenIsAnswered) {
  convince();
  const Reply reply = rig_.replier.wait(fetched());
  EXPECT_EQ(reply.error, 0);
  EXPECT_EQ(reply.count, 1u) << "the pages are to be kept";
  ASSERT_EQ(rig_.replier.stored().size(), 1u);
  EXPECT_EQ(rig_.replier.stored().front(), content_);
  EXPECT_EQ(rig_.counter("opens_stored"), 1u);
  EXPECT_EQ(rig_.release(kOwn), 0);
  EXPECT_TRUE(rig_.forgets_inodes());
}

TEST_F(OpenedFile, IsOpenedAsEverWhenTheKernelRefusesItsPages) {
  convince();
  rig_.replier.refuse_pages(true);
  EXPECT_EQ(rig_.replier.wait(fetched()).count, 0u);
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes, content_);
}

TEST_F(OpenedFile, IsOpenedThoughItCannotBeRead) {
  convince();
  for (const auto& target : rig_.targets) {
    target->decide([](const FrameHeader&) {
      return FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kEio};
    });
  }
  const Reply reply = rig_.replier.wait(fetched());
  EXPECT_EQ(reply.error, 0);
  EXPECT_EQ(reply.count, 0u);
  EXPECT_TRUE(rig_.replier.stored().empty());
}

// Whoever has it open may have a READ under way, which has pages locked that the store would wait
// for.
TEST_F(OpenedFile, IsNotStoredWhenAnotherOpensItMeanwhile) {
  const uint64_t unique = stalled();
  EXPECT_EQ(rig_.core->open(kIno, kOwn + 1, O_RDONLY), fuse::Opening::kDropsPages)
      << "the kernel's pages may still be of before";
  go_on();
  EXPECT_EQ(rig_.replier.wait(unique).count, 0u);
  EXPECT_TRUE(rig_.replier.stored().empty());
  EXPECT_EQ(rig_.core->open(kIno, kOwn + 2, O_RDONLY), fuse::Opening::kKeepsPages);
}

TEST_F(OpenedFile, IsNotStoredWithoutItsLease) {
  const uint64_t unique = stalled();
  rig_.core->inode_lease(kIno, 0, 0);
  go_on();
  const Reply reply = rig_.replier.wait(unique);
  EXPECT_EQ(reply.error, 0);
  EXPECT_EQ(reply.count, 0u);
  EXPECT_TRUE(rig_.replier.stored().empty());
}

TEST_F(OpenedFile, IsOpenedAtOnceWhenItsCallerIsInterrupted) {
  const uint64_t unique = stalled();
  EXPECT_TRUE(rig_.interrupt(unique));
  const Reply reply = rig_.replier.wait(unique);
  EXPECT_EQ(reply.error, 0) << "no EINTR, which programs do not expect of a file";
  EXPECT_EQ(reply.count, 0u);
  go_on();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes, content_);
  EXPECT_TRUE(rig_.replier.stored().empty()) << "the kernel may have READs of it under way";
}

TEST_F(OpenedFile, IsLeftAloneWhenItIsLargeOrOpenAlready) {
  convince();
  open(kOwn);
  open(kOwn + 1);
  EXPECT_EQ(rig_.start_fetch(kOwn + 1), 0u);
  EXPECT_EQ(rig_.release(kOwn), 0);
  EXPECT_EQ(rig_.release(kOwn + 1), 0);
  EXPECT_TRUE(rig_.forgets_inodes());
  ASSERT_TRUE(rig_.core->open_granted(rig_.attributes(prefetch::Policy::kSmallFileMax + 1, 2),
                                      rig_.layout(), rig_.capability(), kOwn, O_RDONLY));
  EXPECT_EQ(rig_.start_fetch(kOwn), 0u);
}

TEST_F(OpenedFile, OfAProgramThatReadsBeginningsAloneIsNotFetched) {
  convince();
  for (uint64_t fh = 2000; fh < 2000 + 2 * WholeSmallFiles::kProbeEvery; ++fh) {
    open(fh);
    const uint64_t unique = rig_.start_fetch(fh);
    if (unique != 0) {
      rig_.replier.wait(unique);
    } else {
      EXPECT_EQ(rig_.read(fh, 0, 4096).bytes.size(), 4096u);
    }
    EXPECT_EQ(rig_.release(fh), 0);
    EXPECT_TRUE(rig_.forgets_inodes());
  }
  const size_t stored = rig_.replier.stored().size();
  open(kOwn);
  EXPECT_EQ(rig_.start_fetch(kOwn), 0u);
  EXPECT_EQ(rig_.replier.stored().size(), stored);
}

}  // namespace
}  // namespace braidfs::client::rig
