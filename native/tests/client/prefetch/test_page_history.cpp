// PageHistory: what is wanted beyond READs that fill the kernel's page cache.
#include "fixture.h"

namespace braidfs::client::prefetch {
namespace {

using PageHistoryPolicy = PolicyTest<PageHistory>;

std::vector<Extent> parts(const std::vector<uint64_t>& numbers) {
  std::vector<Extent> extents;
  for (const uint64_t number : numbers) extents.push_back({number * kMiB, kMiB});
  return extents;
}

// From the first MiB to the one before the last.
std::vector<Extent> parts(uint64_t begin, uint64_t end) {
  std::vector<Extent> extents;
  for (uint64_t number = begin; number < end; ++number) extents.push_back({number * kMiB, kMiB});
  return extents;
}

std::vector<Extent> together(std::vector<Extent> first, const std::vector<Extent>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

TEST_F(PageHistoryPolicy, WantsWhatLiesBeyondWhatWasAskedFor) {
  const auto threads = parts({40, 48, 41, 49, 50, 42, 43, 51, 44, 45, 46, 47});
  expect(
      {
          {"a little of the beginning", parts(0, 3), {}},
          {"the beginning", parts(0, 4), parts(4, 8)},
          {"the kernel's window around a page", parts(20, 28), {}},
          {"more than that", parts(20, 29), parts(29, 38)},
          {"several threads, whose windows follow each other", threads, {}},
          {"and one READ more", together(threads, parts(52, 53)), parts(53, 66)},
          {"what was asked for is left out", together(parts(14, 15), parts(0, 9)), parts({17, 18})},
          {"by strides", parts({0, 2, 4, 6, 8, 10, 12, 14, 16, 18}), {}},
          {"asked again: the kernel lost all", together(parts(0, 4), parts(3, 4)), {}},
          {"up to the file's end",
           parts(88, 97),
           {{97 * kMiB, kMiB}, {98 * kMiB, kMiB}, {99 * kMiB, kMiB}, {100 * kMiB, 4096}}},
          {"small READs alone", {{0, 4096}, {4096, 4096}, {8192, 4096}}, {}},
      },
      For::kPages);
}

TEST_F(PageHistoryPolicy, WantsWindowsAtOneDistance) {
  const auto windows = [](uint64_t stride, uint64_t count, uint64_t number) {
    std::vector<Extent> reads;
    for (uint64_t window = 0; window < number; ++window)
      for (uint64_t part = 0; part < count; ++part)
        reads.push_back({8192 + (window * stride + part) * kMiB, kMiB});
    return reads;
  };
  const auto third = [&](uint64_t stride, uint64_t count) {
    auto reads = windows(stride, count, 2);
    reads.push_back({8192 + 2 * stride * kMiB, kMiB});
    return reads;
  };
  const auto next = [&](uint64_t stride, uint64_t count, uint64_t number) {
    Extents wanted;
    for (uint64_t window = 3; window < 3 + number; ++window)
      for (uint64_t part = 0; part < count; ++part)
        wanted.push_back({8192 + (window * stride + part) * kMiB, kMiB});
    return wanted;
  };
  expect(
      {
          {"two are none", windows(16, 2, 2), {}},
          {"the third tells", third(16, 2), next(16, 2, 4)},
          {"whatever it is", third(10, 2), next(10, 2, 4)},
          {"up to their bytes", third(20, 8), next(20, 8, 2)},
          {"another distance", together(windows(16, 2, 2), {{50 * kMiB, kMiB}}), {}},
      },
      For::kPages);
}

TEST_F(PageHistoryPolicy, LooksAtReadsForPagesOfLargeFilesAlone) {
  EXPECT_EQ(after(parts(0, 4), For::kProgram), Extents{});
  EXPECT_EQ(after(parts(0, 4), For::kPages, Policy::kLargeFileMin - 1), Extents{});
  EXPECT_FALSE(after(parts(0, 4), For::kPages, Policy::kLargeFileMin).empty());
}

// ---- with the table ----

class PageReads : public PrefetcherTest {
 protected:
  PageReads() { whom_ = For::kPages; }
};

TEST_F(PageReads, WhatWasAskedForIsNotFetched) {
  (void)window(14 * kMiB, 1);
  (void)window(0, 9);
  ASSERT_FALSE(wanted_.empty());
  for (uint64_t part = 9; part < 12; ++part) {
    fetch();
    (void)read(part);
    for (const Extent& extent : wanted_) EXPECT_NE(extent.offset, 14 * uint64_t{kMiB});
  }
}

// The next READ begins in what is left of an entry, and what lies before a window that was asked
// for earlier is fetched, too.
TEST_F(PageReads, NeedNotEndWhereEntriesDo) {
  const uint64_t head = 16 * uint64_t{kMiB} + 12288;
  (void)read_at(head, kMiB);
  (void)window(0, 4);
  for (uint64_t at = 4 * uint64_t{kMiB}; at < head; at += kMiB - 4096) {
    fetch();
    EXPECT_EQ(read_at(at, static_cast<uint32_t>(std::min<uint64_t>(kMiB - 4096, head - at))),
              Found::kYes)
        << at;
  }
}

TEST_F(PageReads, ShareWhatIsAhead) {
  for (uint64_t part = 0; part < 33; ++part) {
    (void)read(part);
    fetch();
  }
  EXPECT_EQ(prefetcher_.bytes(), kTogether);
  for (const uint64_t ino : {kIno + 1, kIno + 2}) {
    const uint64_t before = prefetcher_.bytes();
    for (uint64_t part = 0; part < 16; ++part) {
      (void)read(part, kStamp, ino);
      fetch(ino);
    }
    EXPECT_EQ(prefetcher_.bytes() - before, PageHistory::kNearBytes);
  }
}

TEST_F(PageReads, LeaveFewRests) {
  constexpr uint64_t kLast = 50;
  (void)window(0, 4);
  for (uint64_t part = 4; part <= kLast; ++part) {
    fetch();
    ASSERT_EQ(read_at(part * kMiB, kMiB - 4096), Found::kYes) << part;
  }
  EXPECT_EQ(prefetcher_.bytes(), kTogether);
  EXPECT_EQ(read_at((kLast + 1) * kMiB - 4096, 4096), Found::kYes);
  EXPECT_EQ(read_at(5 * uint64_t{kMiB} - 4096, 4096), Found::kNo);
}

TEST_F(PageReads, ByWindowsAtOneDistanceAreAnsweredFromTheTable) {
  constexpr uint64_t kStride = 16 * uint64_t{kMiB} + 4096;
  constexpr uint64_t kFrom = 8192;
  for (uint64_t number = 0; number < 2; ++number)
    EXPECT_EQ(window(kFrom + number * kStride, 4), Found::kNo);
  (void)read_at(kFrom + 2 * kStride, kMiB);
  ASSERT_EQ(wanted_.size(), 16u);
  EXPECT_EQ(wanted_[0].offset, kFrom + 3 * kStride);
  EXPECT_EQ(wanted_[4].offset, kFrom + 4 * kStride);
  fetch();
  for (uint64_t part = 1; part < 4; ++part) (void)read_at(kFrom + 2 * kStride + part * kMiB, kMiB);
  EXPECT_EQ(window(kFrom + 3 * kStride, 4), Found::kYes);
  EXPECT_EQ(parts_.size(), 1u) << "just the kernel's READs";
}

TEST_F(PageReads, ThatAreSmallAreOfAFileThatIsReadAlready) {
  constexpr CachedExtent kSmall{kIno, kStamp, kFileSize, 4 * uint64_t{kMiB}, 4096};
  EXPECT_FALSE(prefetcher_.watches(kSmall, whom_));
  (void)window(0, 4);
  EXPECT_TRUE(prefetcher_.watches(kSmall, whom_));
  EXPECT_FALSE(prefetcher_.watches(kSmall, For::kProgram));
  fetch();
  for (uint64_t at = 0; at < kMiB - Table::kRestMax; at += 4096)
    EXPECT_EQ(read_at(4 * uint64_t{kMiB} + at, 4096), Found::kYes) << at;
  EXPECT_EQ(read_at(4 * uint64_t{kMiB}, 4096, kStamp, kIno + 1), Found::kNo);
  expect_wanted(0, 0);
}

TEST_F(PageReads, AreForgottenWithTheLastClose) {
  (void)window(0, 4);
  fetch();
  EXPECT_TRUE(prefetcher_.knows(kIno));
  EXPECT_FALSE(prefetcher_.knows(kIno + 1));
  prefetcher_.closed(kIno, true);
  EXPECT_EQ(kept(), 0u);
  EXPECT_FALSE(prefetcher_.knows(kIno));
  (void)read(4);
  expect_wanted(0, 0);
}

TEST_F(PageReads, BeginNothingWhilePaused) {
  prefetcher_.pause(true);
  (void)window(0, 4);
  expect_wanted(0, 0);
  prefetcher_.pause(false);
  (void)read(4);
  expect_wanted(5, 10);
}

}  // namespace
}  // namespace braidfs::client::prefetch
