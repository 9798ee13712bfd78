// Asked: how dense READs are behind a place, and windows that come at one distance.
#include <gtest/gtest.h>

#include "client/asked.h"

namespace braidfs::client {
namespace {

constexpr uint64_t kUnit = Asked::kUnit;

bool has_unasked(const Asked& asked, uint64_t unit) {
  const auto stretch = asked.unasked(unit * kUnit, (unit + 1) * kUnit);
  return stretch.begin < stretch.end;
}

TEST(Asked, LooksBackWhileThreeOfFourWereAskedFor) {
  Asked asked;
  asked.note(0, 2 * kUnit);
  EXPECT_EQ(asked.run_before(2 * kUnit).bytes, 2 * kUnit);
  EXPECT_TRUE(asked.run_before(2 * kUnit).is_first);
  for (const uint64_t unit : {4, 5, 6, 7, 8, 9}) asked.note(unit * kUnit, kUnit);
  EXPECT_EQ(asked.run_before(10 * kUnit).bytes, 8 * kUnit) << "a hole of two";
  EXPECT_TRUE(asked.run_before(10 * kUnit).is_first);
  asked.note(30 * kUnit + 4096, 3 * kUnit);
  EXPECT_EQ(asked.run_before(33 * kUnit + 4096).bytes, 3 * kUnit);
  EXPECT_FALSE(asked.run_before(33 * kUnit + 4096).is_first);
  EXPECT_EQ(asked.run_before(40 * kUnit).bytes, 0u);
  EXPECT_EQ(asked.run_before(0).bytes, 0u);
}

TEST(Asked, StridedReadsAreNoRun) {
  Asked asked;
  for (uint64_t unit = 0; unit < 64; unit += 2) {
    asked.note(unit * kUnit, kUnit);
    EXPECT_LE(asked.run_before((unit + 1) * kUnit).bytes, 2 * kUnit);
  }
}

TEST(Asked, WhatIsAskedForTwiceWasLost) {
  Asked asked;
  for (uint64_t unit = 0; unit < 8; ++unit) asked.note(unit * kUnit, kUnit);
  asked.note(4 * kUnit, kUnit);
  EXPECT_EQ(asked.run_before(5 * kUnit).bytes, kUnit);
  EXPECT_FALSE(has_unasked(asked, 4));
  EXPECT_TRUE(has_unasked(asked, 3));
}

TEST(Asked, AFileIsRememberedInPart) {
  Asked asked;
  for (uint64_t region = 0; region <= Asked::kRegionsMax; ++region)
    asked.note(region * 64 * kUnit, kUnit);
  EXPECT_TRUE(has_unasked(asked, 0));
  EXPECT_FALSE(has_unasked(asked, Asked::kRegionsMax * 64));
}

TEST(Asked, TellsWhatWasNotAskedFor) {
  Asked asked;
  const auto is = [&](uint64_t at, uint64_t to, uint64_t begin, uint64_t end, uint64_t had = 0) {
    const auto stretch = asked.unasked(at, to);
    EXPECT_EQ(stretch.begin, begin);
    EXPECT_EQ(stretch.end, end);
    EXPECT_EQ(stretch.asked, had);
  };
  is(4096, kUnit, 4096, kUnit);
  asked.note(8192, kUnit - 16384);  // all but two pages at either end
  is(0, kUnit, 0, 8192);
  is(0, 4096, 0, 4096);
  is(8192, kUnit, kUnit - 8192, kUnit);
  is(65536, kUnit - 8192, kUnit - 8192, kUnit - 8192);
  asked.note(kUnit, 8192);
  asked.note(2 * kUnit - 100, 100);  // the file's last page
  is(kUnit, 2 * kUnit, kUnit, 2 * kUnit, 3 * 4096);
  asked.note(kUnit + 8192, kUnit / 2);
  is(kUnit, 2 * kUnit, 2 * kUnit, 2 * kUnit);
}

TEST(Asked, TellsWindowsAtOneDistance) {
  Asked asked;
  for (uint64_t number = 0; number < 5; ++number) {
    for (const uint64_t unit : {1, 0, 2}) {  // as lanes take them
      const auto windows = asked.note((number * 16 + unit) * kUnit, kUnit);
      const bool is_new = unit == 1;
      if (number < 2 || !is_new) {
        EXPECT_EQ(windows.stride, 0u) << number << " " << unit;
      }
    }
  }
  const auto windows = asked.note(80 * kUnit, kUnit);
  EXPECT_EQ(windows.stride, 16 * kUnit);
  EXPECT_EQ(windows.begin, 96 * kUnit);
  EXPECT_EQ(windows.length, 3 * kUnit);
  EXPECT_EQ(asked.note(120 * kUnit, kUnit).stride, 0u) << "another distance";
  EXPECT_EQ(asked.note(0, 4096).stride, 0u) << "back";
}

}  // namespace
}  // namespace braidfs::client
