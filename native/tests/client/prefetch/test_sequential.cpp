// Sequential: which READs of programs are a run, and what is wanted beyond it.
#include "fixture.h"

namespace braidfs::client::prefetch {
namespace {

using SequentialPolicy = PolicyTest<Sequential>;

std::vector<Extent> parts(const std::vector<uint64_t>& numbers, uint32_t size = kMiB) {
  std::vector<Extent> extents;
  for (const uint64_t number : numbers) extents.push_back({number * size, size});
  return extents;
}

TEST_F(SequentialPolicy, WantsWhatARunReadsNext) {
  expect(
      {
          {"three READs are no run", parts({0, 1, 2}), {}},
          {"as much as it has read", parts({0, 1, 2, 3}), parts({4, 5, 6, 7})},
          {"the rest is under way", parts({0, 1, 2, 3, 4}), parts({8, 9})},
          {"from any place on", parts({50, 51, 52, 53}), parts({54, 55, 56, 57})},
          {"up to the file's end",
           parts({95, 96, 97, 98}),
           {{99 * kMiB, kMiB}, {100 * kMiB, 4096}}},
          {"in the READs' size", parts({8, 9, 10, 11}, 256u << 10),
           parts({12, 13, 14, 15}, 256u << 10)},
          {"a little out of order", parts({1, 0, 3, 2}), {}},
          {"what came early was asked for", parts({0, 1, 2, 4, 3}), parts({5, 6, 7, 8, 9})},
          {"asked again: no longer", parts({0, 1, 2, 3, 3}), {}},
          {"by strides", parts({0, 2, 4, 6, 8, 10}), {}},
          {"backwards", parts({9, 8, 7, 6, 5, 4}), {}},
          {"small READs", parts({0, 1, 2, 3, 4}, 64u << 10), {}},
          {"two runs", parts({0, 40, 1, 41, 2, 42, 3, 43}), parts({44, 45, 46, 47})},
      },
      For::kProgram);
}

TEST_F(SequentialPolicy, LooksAtReadsOfProgramsAndLargeFilesAlone) {
  EXPECT_EQ(after(parts({0, 1, 2, 3}), For::kPages), Extents{});
  EXPECT_EQ(after(parts({0, 1, 2, 3}), For::kProgram, Policy::kLargeFileMin - 1), Extents{});
  EXPECT_FALSE(after(parts({0, 1, 2, 3}), For::kProgram, Policy::kLargeFileMin).empty());
}

TEST_F(SequentialPolicy, IsBoundedByItsWindow) {
  std::vector<Extent> reads;
  for (uint64_t part = 0; part < 40; ++part) reads.push_back({part * kMiB, kMiB});
  EXPECT_EQ(after(reads, For::kProgram).size(), 1u);
  EXPECT_EQ(table_.next(kIno, 40 * uint64_t{kMiB})->begin, 40 * uint64_t{kMiB});
  EXPECT_FALSE(table_.next(kIno, 40 * uint64_t{kMiB} + Sequential::kWindowMax));
}

// ---- with the table ----

class SequentialReads : public PrefetcherTest {
 protected:
  void begin() {
    for (uint64_t part = 0; part < Sequential::kRunMin; ++part) EXPECT_EQ(read(part), Found::kNo);
  }
};

TEST_F(SequentialReads, AreAnsweredFromTheTable) {
  begin();
  expect_wanted(4, 8);
  fetch();
  EXPECT_EQ(read(4), Found::kYes);
  ASSERT_EQ(parts_.size(), 1u);
  EXPECT_EQ(parts_[0].span()[kMiB - 1], std::byte{4});
  expect_wanted(8, 10);
  fetch();
  EXPECT_EQ(read(4), Found::kNo) << "once";
  expect_wanted(0, 0);
  for (uint64_t part = 5; part < 60; ++part) {
    EXPECT_EQ(read(part), Found::kYes) << part;
    fetch();
    EXPECT_LE(prefetcher_.bytes(), Sequential::kWindowMax);
  }
}

TEST_F(SequentialReads, EndWithTheFile) {
  for (uint64_t part = 80; part < 100; ++part) {
    EXPECT_EQ(read(part), part < 80 + Sequential::kRunMin ? Found::kNo : Found::kYes);
    fetch();
  }
  EXPECT_EQ(prefetcher_.bytes(), 4096u);
  EXPECT_EQ(read_at(100 * uint64_t{kMiB}, 4096), Found::kNo) << "a small READ asks by itself";
}

TEST_F(SequentialReads, MayOvertakeEachOther) {
  for (const uint64_t part : {1, 0, 3, 2}) EXPECT_EQ(read(part), Found::kNo);
  for (const uint64_t part : {5, 4, 7, 6}) {
    (void)read(part);
    fetch();
  }
  uint32_t hits = 0;
  for (const uint64_t part : {9, 8, 11, 10, 14, 13, 12}) {
    hits += read(part) == Found::kYes ? 1 : 0;
    fetch();
  }
  EXPECT_EQ(hits, 7u);
}

TEST_F(SequentialReads, AtRandomAndByStridesAreNone) {
  constexpr uint64_t kParts = 1'000'003;
  for (uint64_t part = 1, count = 0; count < 1000; part = part * 65'537 % kParts, ++count) {
    EXPECT_EQ(read_extent({kIno, kStamp, kParts * kMiB, part * kMiB, kMiB}), Found::kNo);
    expect_wanted(0, 0);
  }
  for (uint64_t part = 0; part < 100; part += 4) {
    EXPECT_EQ(read(part, kStamp, kIno + 1), Found::kNo);
    expect_wanted(0, 0);
  }
  EXPECT_EQ(prefetcher_.bytes(), 0u);
}

TEST_F(SequentialReads, OfAFileAreSome) {
  for (uint64_t part = 0; part < 10; ++part) {
    for (const uint64_t from : {0, 30, 60}) {
      EXPECT_EQ(read(from + part), part < Sequential::kRunMin ? Found::kNo : Found::kYes)
          << from + part;
      fetch();
    }
  }
}

TEST_F(SequentialReads, WaitForWhatIsUnderWay) {
  begin();
  const auto under_way = wanted_;
  EXPECT_EQ(read(4), Found::kWait);
  EXPECT_EQ(prefetcher_.under_way(), 6u);
  wanted_ = under_way;
  fetch();
  EXPECT_EQ(read_extent({kIno, kStamp, kFileSize, 4 * uint64_t{kMiB}, kMiB}, true), Found::kYes);
  expect_wanted(0, 0);  // it was told of already
  EXPECT_EQ(prefetcher_.missed(kIno, 8 * uint64_t{kMiB}).size(), 0u);
  EXPECT_EQ(read(8), Found::kNo) << "it could not be fetched";
}

TEST_F(SequentialReads, AreNotGivenAnotherVersion) {
  begin();
  fetch();
  EXPECT_EQ(read(4, kStamp + 1), Found::kNo);
  EXPECT_EQ(read(4), Found::kNo) << "it went with that";
  EXPECT_EQ(read(5), Found::kYes);
  EXPECT_EQ(read(6, 0), Found::kNo) << "the version is not known";
}

TEST_F(SequentialReads, ArePutTogether) {
  begin();
  fetch();
  EXPECT_EQ(read_at(4 * uint64_t{kMiB} + 8192, kMiB), Found::kYes);
  ASSERT_EQ(parts_.size(), 2u);
  EXPECT_EQ(parts_[0].length, kMiB - 8192);
  EXPECT_EQ(parts_[0].span().front(), std::byte{4});
  EXPECT_EQ(parts_[1].length, 8192u);
  EXPECT_EQ(parts_[1].span().back(), std::byte{5});
}

TEST_F(SequentialReads, AreBounded) {
  prefetcher_.limit(3u << 20, true);
  begin();
  expect_wanted(4, 7);
  fetch();
  for (uint64_t file = 1; file < 100; ++file) {
    for (uint64_t part = 0; part < 6; ++part) (void)read(part, kStamp, kIno + file);
    expect_wanted(0, 0);
  }
  EXPECT_EQ(prefetcher_.bytes(), 3u << 20);
  now_ += std::chrono::seconds(10);
  for (uint64_t part = 0; part < Sequential::kRunMin; ++part) (void)read(part, kStamp, kIno + 1000);
  expect_wanted(4, 7);  // what nobody reads makes room
  for (uint64_t file = 0; file < 2 * FileStates<int>::kFilesMax; ++file)
    (void)read(0, kStamp, 10'000 + file);
  prefetcher_.limit(0, true);
  for (uint64_t part = 50; part < 60; ++part) {
    EXPECT_EQ(read(part), Found::kNo);
    expect_wanted(0, 0);
  }
}

TEST_F(SequentialReads, ThatNobodyMakesLetGo) {
  begin();
  fetch();
  EXPECT_GT(kept(), 0u);
  EXPECT_TRUE(prefetcher_.knows(kIno));
  EXPECT_FALSE(prefetcher_.knows(kIno + 1));
  EXPECT_TRUE(prefetcher_.expire(now_));
  now_ += std::chrono::seconds(10);
  EXPECT_FALSE(prefetcher_.expire(now_));
  EXPECT_FALSE(prefetcher_.knows(kIno));
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(counter("stream_unused"), 4u);
  begin();
  fetch();
  prefetcher_.let_go();
  EXPECT_EQ(kept(), 0u);
}

TEST_F(SequentialReads, EndWithTheLastClose) {
  begin();
  fetch();
  prefetcher_.closed(kIno, false);
  EXPECT_EQ(read(4), Found::kYes);
  parts_.clear();
  const auto under_way = wanted_;
  prefetcher_.closed(kIno, true);
  EXPECT_EQ(kept(), 0u);
  wanted_ = under_way;
  fetch();
  EXPECT_EQ(prefetcher_.under_way(), 0u);
  EXPECT_EQ(read(20), Found::kNo);
  expect_wanted(0, 0);  // the run is forgotten
  now_ += std::chrono::seconds(10);
  EXPECT_FALSE(prefetcher_.expire(now_));
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(prefetcher_.bytes(), 0u);
}

TEST_F(SequentialReads, BeginNothingWhilePaused) {
  prefetcher_.pause(true);
  begin();
  expect_wanted(0, 0);
  prefetcher_.pause(false);
  EXPECT_EQ(read(4), Found::kNo);
  expect_wanted(5, 10);
}

}  // namespace
}  // namespace braidfs::client::prefetch
