// The rule by which a full cache accepts new slices, in a model of segments without a disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "cache/turnover.h"

namespace braidfs::cache {
namespace {

uint64_t mixed(uint64_t number) {
  number = (number ^ number >> 31) * 0x7FB5'D329'728E'A185;
  return (number ^ number >> 27) * 0x81DA'DEF4'BC2D'D44D;
}

// A cache of slices of one byte each, in segments of kPerSegment.
class ModelCache {
 public:
  static constexpr size_t kPerSegment = 50;
  explicit ModelCache(size_t segments) : segments_max_(segments) {}

  // Returns whether it was a hit.
  bool read(uint64_t slice) {
    if (const auto found = where_.find(slice); found != where_.end()) {
      turnover_.used(segments_[found->second].use);
      return true;
    }
    if (!room()) {
      turnover_.refused(mixed(slice), 1, where_.size());
      return false;
    }
    Segment& to = segments_[writing_];
    to.slices.push_back(slice);
    to.use = turnover_.fresh(to.slices.size());
    where_[slice] = writing_;
    return false;
  }
  double epoch(std::vector<uint64_t> slices, uint32_t seed, bool in_order = false) {
    if (!in_order) std::shuffle(slices.begin(), slices.end(), std::mt19937(seed));
    const auto hits = std::ranges::count_if(slices, [&](uint64_t slice) { return read(slice); });
    return static_cast<double>(hits) / static_cast<double>(slices.size());
  }

 private:
  struct Segment {
    std::vector<uint64_t> slices;
    Turnover::Use use{};
  };
  bool room() {
    if (segments_.contains(writing_) && segments_[writing_].slices.size() < kPerSegment)
      return true;
    if (segments_.size() >= segments_max_) {
      const auto stale = std::ranges::find_if(segments_, [&](const auto& entry) {
        return turnover_.is_stale(entry.second.use, entry.second.slices.size());
      });
      if (stale == segments_.end() || !turnover_.may_replace(1)) return false;
      turnover_.replaced(kPerSegment);
      for (const uint64_t slice : stale->second.slices) where_.erase(slice);
      segments_.erase(stale);
    }
    segments_[++writing_];
    return true;
  }

  const size_t segments_max_;
  std::map<uint64_t, Segment> segments_;
  std::map<uint64_t, uint64_t> where_;
  uint64_t writing_ = 0;
  Turnover turnover_;
};

std::vector<uint64_t> data_set(uint64_t begin, size_t count) {
  std::vector<uint64_t> slices(count);
  std::iota(slices.begin(), slices.end(), begin);
  return slices;
}

TEST(Turnover, EpochsThatFitHitAlways) {
  ModelCache cache(20);
  EXPECT_EQ(cache.epoch(data_set(0, 1000), 1), 0);
  EXPECT_EQ(cache.epoch(data_set(0, 1000), 2), 1);
}

TEST(Turnover, EpochsLargerThanTheCacheKeepTheirShare) {
  for (const bool in_order : {false, true}) {
    ModelCache cache(20);  // the data set has 1,000
    const auto files = data_set(0, 4000);
    cache.epoch(files, 1, in_order);
    for (uint32_t epoch = 2; epoch < 12; ++epoch) {
      EXPECT_GE(cache.epoch(files, epoch, in_order), 0.22) << epoch << in_order;
    }
  }
}

TEST(Turnover, AScanTakesNothingAway) {
  ModelCache cache(20);
  const auto files = data_set(0, 1000);
  cache.epoch(files, 1);
  cache.epoch(files, 2);
  cache.epoch(data_set(10'000, 200'000), 3, true);
  EXPECT_GE(cache.epoch(files, 4), 0.95);
}

TEST(Turnover, AnotherDataSetTakesThePlaceOfOneThatIsReadNoMore) {
  for (const size_t count : {300u, 1000u, 3000u}) {
    ModelCache cache(20);
    cache.epoch(data_set(0, 1000), 1);
    cache.epoch(data_set(0, 1000), 2);
    double last = 0;
    for (uint32_t epoch = 3; epoch < 14; ++epoch)
      last = cache.epoch(data_set(50'000, count), epoch);
    EXPECT_GE(last, count <= 1000 ? 0.9 : 0.25) << count;
  }
}

TEST(Turnover, ADataSetOfManyMoreThanAreTrackedComesInToo) {
  ModelCache cache(100);  // the data set has 5,000
  cache.epoch(data_set(0, 5000), 1);
  cache.epoch(data_set(0, 5000), 2);
  double last = 0;
  for (uint32_t epoch = 3; epoch < 16; ++epoch)
    last = cache.epoch(data_set(1'000'000, 60'000), epoch);
  EXPECT_GE(last, 0.06);  // 0.083 is possible
}

TEST(Turnover, AFileReadAgainAndAgainEvictsNoDataSetInUse) {
  ModelCache cache(20);
  const auto files = data_set(0, 1000);
  cache.epoch(files, 1);
  std::mt19937 random(5);
  for (int read = 0; read < 20'000; ++read) {
    cache.read(read % 20 == 0 ? 77'777 : files[random() % files.size()]);
  }
  EXPECT_GE(cache.epoch(files, 2), 0.9);
}

}  // namespace
}  // namespace braidfs::cache
