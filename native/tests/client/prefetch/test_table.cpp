// Table: what is begun, what is given, what goes, and how much there may be.
#include <gtest/gtest.h>

#include "client/operation.h"
#include "client/prefetch/table.h"

namespace braidfs::client::prefetch {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kIno = 9;
constexpr uint64_t kStamp = 5;
constexpr uint64_t kFileSize = 10u << 20;
constexpr uint32_t kPart = 64u << 10;

class TableTest : public ::testing::Test {
 protected:
  TableTest() { table_.limit(16u << 20); }

  bool begin(uint64_t begin, uint64_t end, Priority priority = Priority::kNear) {
    extents_.clear();
    return table_.begin(share_, {kIno, begin, end, priority}, extents_, now_);
  }
  CachedExtent extent(uint64_t offset, uint32_t length = kPart, uint64_t stamp = kStamp) const {
    return {kIno, stamp, kFileSize, offset, length};
  }
  void fetch(uint64_t offset, uint32_t length = kPart) {
    table_.fetched(extent(offset, length), memory_.read(Memory::size_for(length)), now_);
  }
  void have(uint64_t offset, uint32_t length = kPart) {
    ASSERT_TRUE(begin(offset, offset + length));
    fetch(offset, length);
  }
  Found read(uint64_t offset, uint32_t length = kPart, uint64_t stamp = kStamp) {
    parts_.clear();
    return table_.read(extent(offset, length, stamp), parts_, nullptr, nullptr, now_);
  }
  uint64_t counter(std::string_view name) const {
    std::vector<std::pair<std::string, uint64_t>> all;
    table_.add_counters(all);
    for (const auto& [has, value] : all)
      if (has == name) return value;
    return ~uint64_t{0};
  }
  uint64_t kept() const { return memory_.account(Buffer::Account::kAnnounced); }

  Memory memory_{MemoryLimits{}, 1};
  Clock::time_point now_ = Clock::now();
  Extents extents_;
  Parts parts_;
  Table table_;
  Share& share_ = table_.share({.name = "here", .lifetime = 10s, .far_eighths = 2});
  Share& other_ = table_.share({.name = "other", .lifetime = 60s, .far_eighths = 4});
};

TEST_F(TableTest, BeginsWhatIsMissing) {
  EXPECT_TRUE(begin(kPart, 2 * kPart));
  EXPECT_EQ(extents_, (Extents{{kPart, kPart}}));
  EXPECT_TRUE(begin(0, 4 * kPart));
  EXPECT_EQ(extents_, (Extents{{0, kPart}, {2 * kPart, 2 * kPart}}));
  EXPECT_TRUE(begin(0, 4 * kPart));
  EXPECT_EQ(extents_, Extents{});
  EXPECT_EQ(table_.under_way(), 3u);
  EXPECT_EQ(share_.under_way(), 3u);
}

TEST_F(TableTest, GivesEachByteOnce) {
  have(0);
  have(kPart);
  EXPECT_EQ(read(100, kPart), Found::kYes);
  ASSERT_EQ(parts_.size(), 2u);
  EXPECT_EQ(parts_[0].from, 100u);
  EXPECT_EQ(parts_[0].length, kPart - 100);
  EXPECT_EQ(parts_[1].length, 100u);
  EXPECT_EQ(read(0, 100), Found::kYes);
  EXPECT_EQ(read(0, 100), Found::kNo);
  EXPECT_EQ(read(kPart + 100, kPart - 100), Found::kYes);
  EXPECT_FALSE(share_.any());
  EXPECT_EQ(table_.bytes(), 0u);
  EXPECT_FALSE(table_.has(kIno));
  EXPECT_EQ(counter("here_reads"), 3u);
  EXPECT_EQ(counter("here_unused"), 0u);
}

TEST_F(TableTest, AReadWaitsForWhatIsUnderWay) {
  have(0);
  ASSERT_TRUE(begin(kPart, 2 * kPart));
  EXPECT_EQ(read(0, 2 * kPart), Found::kWait);
  EXPECT_EQ(table_.fetched(extent(kPart), memory_.read(kPart), now_).size(), 1u);
  EXPECT_EQ(read(0, 2 * kPart), Found::kYes);
}

TEST_F(TableTest, AReadWaitsForWhatCouldNotBeFetchedInVain) {
  ASSERT_TRUE(begin(0, kPart));
  EXPECT_EQ(read(0), Found::kWait);
  EXPECT_EQ(table_.missed(kIno, 0).size(), 1u);
  EXPECT_EQ(read(0), Found::kNo);
  EXPECT_EQ(counter("here_missed"), 1u);
  EXPECT_EQ(table_.missed(kIno, 0).size(), 0u) << "it is not under way any more";
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST_F(TableTest, WhatIsMissingBesideSomethingIsBegun) {
  have(kPart);
  extents_.clear();
  const auto found = table_.read(extent(0, 3 * kPart), parts_, nullptr, &extents_, now_);
  EXPECT_EQ(found, Found::kWait);
  EXPECT_EQ(extents_, (Extents{{0, kPart}, {2 * kPart, kPart}}));
  extents_.clear();
  EXPECT_EQ(table_.read(extent(8 * kPart), parts_, nullptr, &extents_, now_), Found::kNo);
  EXPECT_EQ(extents_, Extents{}) << "nothing of it is here";
  EXPECT_EQ(read(kPart, 4 * kPart), Found::kNo) << "nothing may be begun";
}

TEST_F(TableTest, WhatAReaderGetsInAnotherWayIsGivenToo) {
  have(0);
  EXPECT_EQ(read(0, 2 * kPart), Found::kNo);
  EXPECT_FALSE(share_.any());
}

TEST_F(TableTest, AnotherVersionIsNotGiven) {
  have(0);
  have(kPart);
  EXPECT_EQ(read(0, kPart, kStamp + 1), Found::kNo);
  EXPECT_EQ(read(0), Found::kNo) << "it has gone";
  EXPECT_EQ(read(kPart), Found::kYes);
  have(0);
  CachedExtent longer = extent(0);
  ++longer.file_size;
  EXPECT_EQ(table_.read(longer, parts_, nullptr, nullptr, now_), Found::kNo);
  EXPECT_EQ(counter("here_unused"), 2u);
}

TEST_F(TableTest, AnotherVersionUnderWayIsWaitedFor) {
  ASSERT_TRUE(begin(0, kPart));
  EXPECT_EQ(read(0, kPart, kStamp + 1), Found::kWait);
}

TEST_F(TableTest, AFileThatWasShorterIsTakenAsItIs) {
  ASSERT_TRUE(begin(0, 4 * kPart));
  fetch(0, kPart);
  EXPECT_EQ(table_.bytes(), kPart);
  EXPECT_EQ(table_.next(kIno, 0)->end, kPart);
}

TEST_F(TableTest, AWholeFileGoesWithTheReadOfItsEnd) {
  ASSERT_TRUE(table_.begin_file(other_, 7, 1u << 20, kPart, now_));
  EXPECT_TRUE(table_.is_under_way(7));
  EXPECT_EQ(table_.bytes(), kPart);
  const auto at = [](uint64_t offset, uint32_t length) {
    return CachedExtent{7, kStamp, 10'000, offset, length};
  };
  EXPECT_EQ(table_.read(at(4096, 4096), parts_, nullptr, nullptr, now_), Found::kWait)
      << "whatever its size";
  EXPECT_EQ(table_.fetched(at(0, 10'000), memory_.read(10'000), now_).size(), 1u);
  EXPECT_FALSE(table_.is_under_way(7));
  EXPECT_EQ(table_.read(at(8192, 1808), parts_, nullptr, nullptr, now_), Found::kYes);
  EXPECT_FALSE(table_.has(7));
  EXPECT_EQ(counter("other_reads"), 1u);
}

TEST_F(TableTest, AnEntryGoesAfterItsLifetime) {
  have(0);
  ASSERT_TRUE(table_.begin_file(other_, 7, 1u << 20, kPart, now_));
  table_.fetched({7, kStamp, 100, 0, 100}, memory_.read(100), now_);
  ASSERT_TRUE(begin(kPart, 2 * kPart));
  now_ += 10s;
  EXPECT_TRUE(table_.expire(now_));
  EXPECT_EQ(read(0), Found::kNo);
  EXPECT_TRUE(table_.has(7)) << "of a share that keeps it longer";
  EXPECT_EQ(table_.next(kIno, 0)->begin, kPart) << "under way";
  now_ += 50s;
  EXPECT_TRUE(table_.expire(now_));
  EXPECT_FALSE(table_.has(7));
  table_.missed(kIno, kPart);
  EXPECT_FALSE(table_.expire(now_));
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(counter("here_unused"), 1u);
  EXPECT_EQ(counter("other_unused"), 1u);
}

TEST_F(TableTest, WhatIsHereGoesWhenItIsDropped) {
  have(0);
  ASSERT_TRUE(begin(kPart, 2 * kPart));
  table_.drop(other_, kIno);
  EXPECT_GT(kept(), 0u) << "of another share";
  table_.drop(share_, kIno);
  EXPECT_EQ(kept(), 0u);
  EXPECT_TRUE(table_.has(kIno));
  fetch(kPart);
  EXPECT_GT(kept(), 0u);
  table_.let_go();
  EXPECT_EQ(kept(), 0u);
  EXPECT_FALSE(table_.has(kIno));
  table_.drop(share_, kIno);
}

TEST_F(TableTest, ABufferThatWasGivenOutlivesItsEntry) {
  have(0);
  EXPECT_EQ(read(0, 4096), Found::kYes);
  table_.let_go();
  ASSERT_EQ(parts_.size(), 1u);
  EXPECT_EQ(parts_[0].span().size(), 4096u);
  EXPECT_GT(kept(), 0u);
  parts_.clear();
  EXPECT_EQ(kept(), 0u);
}

TEST_F(TableTest, IsBounded) {
  table_.limit(4 * kPart);
  EXPECT_FALSE(begin(0, kPart, Priority::kFar) && begin(kPart, 2 * kPart, Priority::kFar))
      << "a quarter of it, for what is far";
  EXPECT_TRUE(begin(kPart, 2 * kPart));
  EXPECT_TRUE(begin(2 * kPart, 3 * kPart));
  EXPECT_TRUE(table_.begin_file(other_, 7, 1u << 20, kPart, now_)) << "a share of its own";
  EXPECT_FALSE(table_.begin_file(other_, 8, 1u << 20, kPart, now_));
  EXPECT_FALSE(begin(3 * kPart, 4 * kPart));
  EXPECT_EQ(extents_, Extents{});
  EXPECT_EQ(table_.bytes(), 4 * kPart);
  for (const uint64_t offset : {0u, kPart, 2 * kPart}) fetch(offset);
  now_ += 10s;
  EXPECT_TRUE(begin(3 * kPart, 4 * kPart)) << "what is too old makes room";
  table_.limit(0);
  EXPECT_FALSE(begin(8 * kPart, 9 * kPart));
}

TEST_F(TableTest, BytesCountByTheirBuffers) {
  have(0, 5000);
  EXPECT_EQ(table_.bytes(), kPart);
  EXPECT_EQ(table_.bytes(), kept());
}

TEST_F(TableTest, RestsAreBounded) {
  constexpr uint32_t kLong = 2 * Table::kRestMax;
  for (uint64_t number = 0; number <= Table::kRestsMax; ++number) {
    have(number * kLong, kLong);
    EXPECT_EQ(read(number * kLong, kLong - 4096), Found::kYes);
  }
  EXPECT_EQ(table_.next(kIno, 0)->begin, kLong) << "the first one has gone";
  EXPECT_EQ(read(2 * kLong - 4096, 4096), Found::kYes);
}

}  // namespace
}  // namespace braidfs::client::prefetch
