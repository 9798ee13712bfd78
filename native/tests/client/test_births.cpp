// Files that lanes made and of which Python has not heard: what is written to them is told with
// their birth (docs/decisions/0026-size-with-the-birth.md).
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client {
namespace {

using rig::Bytes;
using rig::pattern;
using rig::Rig;

class Newborn : public testing::Test {
 protected:
  Newborn() : rig_({.targets = 1}) {
    rig_.core->written_noter([this](uint64_t ino, const Written& written) {
      EXPECT_EQ(ino, Rig::kIno);
      EXPECT_TRUE(rig_.core->is_ahead(ino)) << "tables are not up to date yet";
      noted_.push_back(written);
    });
    EXPECT_TRUE(rig_.core->born(rig_.attributes(0), rig_.layout(), rig_.capability(),
                                {Rig::kFh, O_WRONLY}));
  }
  names::BirthSince take() { return rig_.core->birth_take(Rig::kIno).value(); }

  Rig rig_;
  std::vector<Written> noted_;
};

TEST_F(Newborn, IsWrittenAndClosedWithoutAWord) {
  const Bytes bytes = pattern(100'000, 1);
  EXPECT_EQ(rig_.write(Rig::kFh, 0, bytes).count, bytes.size());
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.file(bytes.size()), bytes) << "its bytes are at the targets, as ever";
  EXPECT_FALSE(rig_.core->is_ahead(Rig::kIno));
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  ASSERT_EQ(noted_.size(), 1u);
  EXPECT_EQ(noted_[0].size, bytes.size());
  EXPECT_TRUE(rig_.commits().empty());
  const names::BirthSince birth = take();
  EXPECT_TRUE(rig_.events(EventKind::kRelease).empty());
  EXPECT_EQ(birth.changes, 1u);
  EXPECT_EQ(birth.size, bytes.size());
  EXPECT_EQ(birth.mtime_ns, noted_[0].mtime_ns);
  EXPECT_FALSE(birth.is_open);
  EXPECT_EQ(rig_.counter("commits_with_births"), 1u);
}

TEST_F(Newborn, EachCloseThatWroteIsAChange) {
  for (const uint64_t count : {1, 2}) {
    rig_.write(Rig::kFh, 1000 * (count - 1), pattern(1000, 1));
    EXPECT_EQ(rig_.flush(Rig::kFh), 0);
    EXPECT_EQ(rig_.flush(Rig::kFh), 0) << "of another descriptor, which wrote nothing";
    EXPECT_EQ(noted_.size(), count);
  }
  const names::BirthSince birth = take();
  EXPECT_EQ(birth.changes, 2u);
  EXPECT_EQ(birth.size, 2000u);
  EXPECT_TRUE(birth.is_open);
}

TEST_F(Newborn, OnceTakenItIsAFileAsAny) {
  rig_.write(Rig::kFh, 0, pattern(1000, 1));
  EXPECT_EQ(take().changes, 0u) << "the bytes are not at the targets";
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  ASSERT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(rig_.commits().at(0).size, 1000u);
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  rig_.wait_event(EventKind::kRelease);
  EXPECT_TRUE(noted_.empty());
}

TEST_F(Newborn, SyncedItIsCommittedDurably) {
  rig_.write(Rig::kFh, 0, pattern(1000, 1));
  EXPECT_EQ(rig_.fsync(Rig::kFh), 0);
  ASSERT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(take().changes, 0u);
}

// A birth is told before settings: what is written after its time was set would have the time of
// the setting.
TEST_F(Newborn, WrittenAfterItsTimeWasSetItIsCommittedByItself) {
  rig_.core->lease_until(Clock::now() + std::chrono::seconds(60));
  rig_.write(Rig::kFh, 0, pattern(1000, 1));
  const auto ahead = rig_.core->before_setting(Rig::kIno, true);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(ahead->size, 1000u);
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(noted_.size(), 1u) << "the size alone goes with the birth";
  rig_.write(Rig::kFh, 1000, pattern(1000, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(noted_.size(), 1u);
  ASSERT_EQ(rig_.commits().size(), 1u);
  EXPECT_EQ(rig_.commits().at(0).size, 2000u);
}

TEST_F(Newborn, ClosedItIsNoLongerExclusivelyOurs) {
  rig_.core->lease_until(Clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(rig_.core->before_setting(Rig::kIno, false).has_value());
  rig_.write(Rig::kFh, 0, pattern(1000, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  EXPECT_TRUE(rig_.core->before_setting(Rig::kIno, false).has_value());
  take();
  EXPECT_FALSE(rig_.core->before_setting(Rig::kIno, false).has_value());
}

TEST_F(Newborn, NobodyHasItWhenThatIsTaken) {
  rig_.write(Rig::kFh, 0, pattern(1000, 1));
  EXPECT_EQ(rig_.flush(Rig::kFh), 0);
  EXPECT_EQ(rig_.release(Rig::kFh), 0);
  take();
  rig_.core->inode_drop(Rig::kIno);
  rig_.core->inode_lost(Rig::kIno);  // not durable: it would stay until it is
  EXPECT_TRUE(rig_.forgets_inodes());
}

}  // namespace
}  // namespace braidfs::client
