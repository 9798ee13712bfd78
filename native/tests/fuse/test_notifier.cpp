// Notifications over a socket that stands for /dev/fuse: what comes when, and which marks wait for
// what.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "fuse/notifier.h"
#include "fuse/protocol.h"
#include "kernel_side.h"

namespace braidfs::fuse::testing {
namespace {

using std::chrono::milliseconds;
using Clock = Notification::Clock;

class NotifierTest : public ::testing::Test {
 protected:
  NotifierTest() {
    (void)::fcntl(device_.theirs.get(), F_SETFL,
                  0);  // a write waits, as one for a locked page does
    notifier_.start(std::move(device_.theirs));
  }

  // What was told at that moment or was by now; false after some seconds.
  bool is_told(uint64_t token) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(5),
                             [&] { return std::ranges::count(told_, token) != 0; });
  }
  size_t told_count() {
    const std::scoped_lock lock(mu_);
    return told_.size();
  }
  Bytes next() { return receive(device_.ours.get()); }

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<uint64_t> told_;
  SocketPair device_;
  Notifier notifier_{[this](uint64_t token) {
    const std::scoped_lock lock(mu_);
    told_.push_back(token);
    changed_.notify_all();
  }};
};

Notification later(Notification notification, Clock::time_point when) {
  notification.not_before = when;
  return notification;
}

TEST_F(NotifierTest, WhatIsForLaterHoldsUpItsMarkAlone) {
  const auto when = Clock::now() + milliseconds(60);
  std::vector<Notification> batch;
  batch.push_back(later(Notification::of_entry(5, "again", true), when));
  batch.push_back(later(Notification::mark_of(7, 1u << names_queue(5)), when));
  batch.push_back(Notification::of_entry(5, "now", true));
  batch.push_back(Notification::mark_of(8, 1u << names_queue(5)));
  notifier_.push(std::move(batch));
  EXPECT_EQ(next().size(), 16 + sizeof(fuse_notify_inval_entry_out) + 4);
  EXPECT_TRUE(is_told(8));
  EXPECT_EQ(next().size(), 16 + sizeof(fuse_notify_inval_entry_out) + 6);
  EXPECT_GE(Clock::now(), when);
  EXPECT_TRUE(is_told(7));
  EXPECT_EQ(told_count(), 2u);
}

TEST_F(NotifierTest, AMarkIsToldOnceWhateverItsQueues) {
  std::vector<Notification> batch;
  for (uint64_t parent = 0; parent < 8; ++parent)
    batch.push_back(Notification::of_entry(parent, "x", true));
  batch.push_back(Notification::of_inode(9, -1, 0));
  batch.push_back(Notification::of_inode(9, 0, 0));
  batch.push_back(Notification::mark_of(3));
  notifier_.push(std::move(batch));
  EXPECT_TRUE(is_told(3));
  for (int count = 0; count < 10; ++count) EXPECT_FALSE(next().empty());
  EXPECT_EQ(told_count(), 1u);
}

// A lease is given back when its mark is told: not before the kernel has let go of the pages.
TEST_F(NotifierTest, AMarkWaitsForWhatIsBeforeItInItsQueue) {
  constexpr int kMoreThanASocketTakes = 2000;
  for (const int64_t offset : {int64_t{0}, int64_t{-1}}) {
    const uint64_t token = offset == 0 ? 1 : 2;
    std::vector<Notification> batch;
    for (int count = 0; count < kMoreThanASocketTakes; ++count)
      batch.push_back(Notification::of_inode(9, offset, 0));
    batch.push_back(
        Notification::mark_of(token, 1u << (offset == 0 ? kPagesQueue : kAttributesQueue)));
    notifier_.push(std::move(batch));
    for (int count = 0; count < kMoreThanASocketTakes; ++count) {
      if (count < kMoreThanASocketTakes / 2) {
        ASSERT_EQ(told_count(), token - 1) << count;
      }
      ASSERT_FALSE(next().empty());
    }
    EXPECT_TRUE(is_told(token));
  }
}

TEST_F(NotifierTest, WhatWaitsIsDoneWithWhenItEnds) {
  bool called = false;
  Notification entry =
      later(Notification::of_entry(5, "never", true), Clock::now() + std::chrono::hours(1));
  entry.then = [&called] { called = true; };
  std::vector<Notification> batch;
  batch.push_back(std::move(entry));
  batch.push_back(later(Notification::mark_of(1), Clock::now() + std::chrono::hours(1)));
  notifier_.push(std::move(batch));
  notifier_.stop();
  EXPECT_TRUE(called);
  batch.clear();
  batch.push_back(Notification::mark_of(2));
  notifier_.push(std::move(batch));
  EXPECT_EQ(told_, (std::vector<uint64_t>{1, 2}));
}

// offset and length of an INVAL_INODE; {-1, token} of a mark.
std::pair<int64_t, int64_t> range_of(const Notification& notification) {
  if (notification.bytes.empty()) return {-1, static_cast<int64_t>(notification.token)};
  fuse_notify_inval_inode_out body;
  std::memcpy(&body, notification.bytes.data() + sizeof(fuse_out_header), sizeof(body));
  return {body.off, body.len};
}

std::vector<std::pair<int64_t, int64_t>> ranges_of(Ranges locked) {
  std::vector<Notification> batch;
  std::vector<Notification> behind;
  invalidate_pages(batch, behind, 7, std::move(locked));
  batch.push_back(Notification::mark_of(5));
  std::ranges::move(behind, std::back_inserter(batch));
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Notification& notification : batch) ranges.push_back(range_of(notification));
  return ranges;
}

TEST(Pages, ThoseThatMayBeLockedComeBehindTheMark) {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(ranges_of({}), (Pairs{{0, 0}, {-1, 5}}));
  EXPECT_EQ(ranges_of({{9000, 9010}}), (Pairs{{0, 8192}, {12288, 0}, {-1, 5}, {0, 12288}}));
  EXPECT_EQ(ranges_of({{20000, 20001}, {0, 100}}),
            (Pairs{{4096, 12288}, {20480, 0}, {-1, 5}, {0, 20480}}));
  EXPECT_EQ(ranges_of({{0, 8192}, {100, 200}}), (Pairs{{8192, 0}, {-1, 5}, {0, 8192}}));
}

}  // namespace
}  // namespace braidfs::fuse::testing
