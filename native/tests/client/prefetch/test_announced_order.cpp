// AnnouncedOrder: what is fetched in which order, which READs are given it, and what goes unread.
#include <numeric>

#include "fixture.h"

namespace braidfs::client::prefetch {
namespace {

std::vector<uint64_t> numbers(uint64_t first, size_t count) {
  std::vector<uint64_t> inos(count);
  std::iota(inos.begin(), inos.end(), first);
  return inos;
}

class AnnouncedFiles : public PrefetcherTest {
 protected:
  void announce(uint64_t first, size_t count, bool replaces = false) {
    EXPECT_EQ(prefetcher_.announce(numbers(first, count), replaces), count);
  }
  std::vector<uint64_t> take() { return prefetcher_.take_announced(now_); }
  void come(uint64_t ino, uint32_t size = 4096) {
    prefetcher_.fetched({ino, kStamp, size, 0, size}, bytes(size, ino), now_);
  }
  void fetch_all() {
    for (auto taken = take(); !taken.empty(); taken = take())
      for (const uint64_t ino : taken) come(ino);
  }
  Found read_file(uint64_t ino, uint64_t offset = 0, uint32_t length = 4096,
                  uint64_t stamp = kStamp, uint64_t size = 4096) {
    return read_extent({ino, stamp, size, offset, length});
  }
};

TEST_F(AnnouncedFiles, GoInOrderABatchAtATime) {
  constexpr size_t kBatch = AnnouncedOrder::kBatch;
  announce(1, 100);
  EXPECT_EQ(take(), numbers(1, kBatch));
  EXPECT_EQ(take(), numbers(1 + kBatch, kBatch));
  while (!take().empty()) {
  }
  for (uint64_t ino = 1; ino < kBatch; ++ino) {
    come(ino);
    EXPECT_TRUE(take().empty()) << "not one by one";
  }
  come(kBatch);
  EXPECT_EQ(take(), numbers(1 + AnnouncedOrder::kUnderWayMax, kBatch));
}

TEST_F(AnnouncedFiles, AreGivenOnce) {
  announce(1, 2);
  fetch_all();
  EXPECT_EQ(read_file(2), Found::kYes);
  ASSERT_EQ(parts_.size(), 1u);
  EXPECT_EQ(parts_[0].span()[100], std::byte{2});
  EXPECT_EQ(read_file(2), Found::kNo);
  EXPECT_EQ(read_file(1), Found::kYes);
  EXPECT_EQ(read_file(3), Found::kNo);
  parts_.clear();
  EXPECT_EQ(kept(), 0u);
  EXPECT_FALSE(prefetcher_.knows(2));
  EXPECT_EQ(counter("announced_reads"), 2u);
}

TEST_F(AnnouncedFiles, AreGivenInPieces) {
  announce(1, 1);
  for (const uint64_t ino : take()) come(ino, 10'000);
  EXPECT_EQ(read_file(1, 0, 4096, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(read_file(1, 4096, 4096, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(parts_[0].span()[4095], std::byte{1});
  EXPECT_EQ(read_file(1, 8192, 1808, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(read_file(1, 0, 4096, kStamp, 10'000), Found::kNo);
}

TEST_F(AnnouncedFiles, AreWaitedForWhateverPartIsRead) {
  announce(1, 1);
  (void)take();
  EXPECT_EQ(read_file(1, 500'000, 4096, kStamp, 600'000), Found::kWait);
  EXPECT_EQ(prefetcher_.missed(1, 0).size(), 1u);
  EXPECT_EQ(read_file(1), Found::kNo);
  EXPECT_EQ(counter("announced_missed"), 1u);
}

TEST_F(AnnouncedFiles, OfAnotherVersionAreNotGiven) {
  announce(1, 3);
  fetch_all();
  EXPECT_EQ(read_file(1, 0, 4096, kStamp + 1), Found::kNo);
  EXPECT_EQ(read_file(1), Found::kNo) << "it is of no use any more";
  EXPECT_EQ(read_file(2, 0, 4096, kStamp, 4097), Found::kNo);
  EXPECT_EQ(read_file(3, 4096, 4096), Found::kNo) << "beyond its end";
}

TEST_F(AnnouncedFiles, TakeNoMoreThanTheirShare) {
  prefetcher_.limit(4u << 20, true);
  announce(1, 1000);
  fetch_all();
  const uint64_t full = kept();
  EXPECT_LE(full, 3u << 20);
  EXPECT_GT(full, 0u);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(read_file(1), Found::kYes);
  parts_.clear();
  fetch_all();
  EXPECT_EQ(kept(), full);
}

TEST_F(AnnouncedFiles, ThatAreNotReadMakeRoomInTime) {
  prefetcher_.limit(4u << 20, true);
  announce(1, 1000);
  fetch_all();
  EXPECT_TRUE(prefetcher_.expire(now_));
  now_ += std::chrono::seconds(60);
  EXPECT_TRUE(prefetcher_.expire(now_) || !take().empty());
  while (!take().empty()) {
  }
  EXPECT_EQ(read_file(1), Found::kNo);
}

TEST_F(AnnouncedFiles, ThatWerePassedOverGo) {
  announce(1, AnnouncedOrder::kBehindMax + 3);
  fetch_all();
  EXPECT_EQ(read_file(AnnouncedOrder::kBehindMax + 1), Found::kYes);
  EXPECT_EQ(read_file(1), Found::kYes) << "not that far behind";
  EXPECT_EQ(read_file(AnnouncedOrder::kBehindMax + 3), Found::kYes);
  EXPECT_EQ(read_file(2), Found::kNo);
  EXPECT_EQ(read_file(3), Found::kYes);
}

TEST_F(AnnouncedFiles, ThatWereClosedAreNotWantedAnyMore) {
  announce(1, 2);
  for (const uint64_t ino : take()) {
    prefetcher_.closed(ino, true);  // under way: somebody else's close
    come(ino);
  }
  EXPECT_TRUE(prefetcher_.knows(1));
  EXPECT_FALSE(prefetcher_.knows(3)) << "it was not announced";
  prefetcher_.closed(1, false);
  EXPECT_FALSE(prefetcher_.knows(1));
  EXPECT_EQ(read_file(1), Found::kNo);
  EXPECT_EQ(read_file(2), Found::kYes);
}

TEST_F(AnnouncedFiles, TakeThePlaceOfOthers) {
  announce(1, 100);
  announce(200, 3, true);
  EXPECT_EQ(take(), numbers(200, 3));
}

TEST_F(AnnouncedFiles, ThatAreHereAreNotFetchedAgain) {
  announce(1, 2);
  fetch_all();
  announce(1, 3);
  EXPECT_EQ(take(), numbers(3, 1));
  EXPECT_FALSE(prefetcher_.has_announced());
}

TEST_F(AnnouncedFiles, MayBeAnnouncedAgain) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    announce(1, 2 * AnnouncedOrder::kBehindMax);
    for (auto taken = take(); !taken.empty(); taken = take()) {
      for (const uint64_t ino : taken) {
        come(ino);
        EXPECT_EQ(read_file(ino), Found::kYes);
      }
    }
  }
  EXPECT_EQ(counter("announced_unused"), 0u);
  EXPECT_FALSE(prefetcher_.expire(now_)) << "nothing is left of the order";
}

TEST_F(AnnouncedFiles, DoNotBeginWhilePaused) {
  announce(1, 100);
  const auto begun = take();
  prefetcher_.pause(true);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(prefetcher_.under_way(), begun.size());
  for (const uint64_t ino : begun) come(ino);
  EXPECT_EQ(prefetcher_.under_way(), 0u);
  EXPECT_EQ(read_file(begun.front()), Found::kYes);
  prefetcher_.pause(false);
  EXPECT_FALSE(take().empty());
}

TEST_F(AnnouncedFiles, GoWhenMemoryIsShort) {
  announce(1, 100);
  const auto first = take();
  for (const uint64_t ino : first) come(ino);
  const auto second = take();
  prefetcher_.let_go();
  EXPECT_EQ(kept(), 0u);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(read_file(first.front()), Found::kNo);
  come(second.front());
  EXPECT_EQ(read_file(second.front()), Found::kYes);
}

TEST_F(AnnouncedFiles, AreBounded) {
  const auto many = numbers(1, AnnouncedOrder::kWantedMax);
  EXPECT_EQ(prefetcher_.announce(many, false), AnnouncedOrder::kWantedMax);
  EXPECT_EQ(prefetcher_.announce(many, false), 0u);
  EXPECT_EQ(prefetcher_.announce(many, true), AnnouncedOrder::kWantedMax);
  prefetcher_.limit(0, true);
  EXPECT_EQ(prefetcher_.announce(many, true), 0u);
  EXPECT_TRUE(take().empty());
}

// Readers of large files keep their part of the budget.
TEST_F(AnnouncedFiles, LeaveRoomForReaders) {
  prefetcher_.limit(20u << 20, true);
  announce(1'000, 1000);
  fetch_all();
  ASSERT_TRUE(take().empty());
  for (uint64_t part = 0; part < Sequential::kRunMin; ++part) (void)read(part);
  expect_wanted(4, 8);
}

TEST_F(AnnouncedFiles, CostReadsOfOthersNoLock) {
  constexpr CachedExtent kOther{77, kStamp, 4096, 0, 4096};
  EXPECT_FALSE(prefetcher_.watches(kOther, For::kPages));
  announce(1, 1);
  EXPECT_FALSE(prefetcher_.watches(kOther, For::kPages)) << "nothing is fetched yet";
  (void)take();
  EXPECT_TRUE(prefetcher_.watches(kOther, For::kPages));
  constexpr CachedExtent kLarge{77, kStamp, kFileSize, 0, 4096};
  EXPECT_FALSE(prefetcher_.watches(kLarge, For::kPages));
}

}  // namespace
}  // namespace braidfs::client::prefetch
