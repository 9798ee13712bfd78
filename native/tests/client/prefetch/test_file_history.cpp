// FileHistory: how dense READs are behind a place, and windows that come at one distance.
#include <gtest/gtest.h>

#include "client/prefetch/file_history.h"

namespace braidfs::client::prefetch {
namespace {

constexpr uint64_t kUnit = FileHistory::kUnit;

bool has_unasked(const FileHistory& history, uint64_t unit) {
  const auto stretch = history.unasked(unit * kUnit, (unit + 1) * kUnit);
  return stretch.begin < stretch.end;
}

TEST(FileHistory, LooksBackWhileThreeOfFourWereAskedFor) {
  FileHistory history;
  history.note(0, 2 * kUnit);
  EXPECT_EQ(history.run_before(2 * kUnit).bytes, 2 * kUnit);
  EXPECT_TRUE(history.run_before(2 * kUnit).is_first);
  for (const uint64_t unit : {4, 5, 6, 7, 8, 9}) history.note(unit * kUnit, kUnit);
  EXPECT_EQ(history.run_before(10 * kUnit).bytes, 8 * kUnit) << "a hole of two";
  EXPECT_TRUE(history.run_before(10 * kUnit).is_first);
  history.note(30 * kUnit + 4096, 3 * kUnit);
  EXPECT_EQ(history.run_before(33 * kUnit + 4096).bytes, 3 * kUnit);
  EXPECT_FALSE(history.run_before(33 * kUnit + 4096).is_first);
  EXPECT_EQ(history.run_before(40 * kUnit).bytes, 0u);
  EXPECT_EQ(history.run_before(0).bytes, 0u);
}

TEST(FileHistory, StridedReadsAreNoRun) {
  FileHistory history;
  for (uint64_t unit = 0; unit < 64; unit += 2) {
    history.note(unit * kUnit, kUnit);
    EXPECT_LE(history.run_before((unit + 1) * kUnit).bytes, 2 * kUnit);
  }
}

TEST(FileHistory, WhatIsAskedForTwiceWasLost) {
  FileHistory history;
  for (uint64_t unit = 0; unit < 8; ++unit) history.note(unit * kUnit, kUnit);
  history.note(4 * kUnit, kUnit);
  EXPECT_EQ(history.run_before(5 * kUnit).bytes, kUnit);
  EXPECT_FALSE(has_unasked(history, 4));
  EXPECT_TRUE(has_unasked(history, 3));
}

TEST(FileHistory, AFileIsRememberedInPart) {
  FileHistory history;
  for (uint64_t region = 0; region <= FileHistory::kRegionsMax; ++region)
    history.note(region * 64 * kUnit, kUnit);
  EXPECT_TRUE(has_unasked(history, 0));
  EXPECT_FALSE(has_unasked(history, FileHistory::kRegionsMax * 64));
}

TEST(FileHistory, TellsWhatWasNotAskedFor) {
  FileHistory history;
  const auto is = [&](uint64_t at, uint64_t to, uint64_t begin, uint64_t end, uint64_t had = 0) {
    const auto stretch = history.unasked(at, to);
    EXPECT_EQ(stretch.begin, begin);
    EXPECT_EQ(stretch.end, end);
    EXPECT_EQ(stretch.asked, had);
  };
  is(4096, kUnit, 4096, kUnit);
  history.note(8192, kUnit - 16384);  // all but two pages at either end
  is(0, kUnit, 0, 8192);
  is(0, 4096, 0, 4096);
  is(8192, kUnit, kUnit - 8192, kUnit);
  is(65536, kUnit - 8192, kUnit - 8192, kUnit - 8192);
  history.note(kUnit, 8192);
  history.note(2 * kUnit - 100, 100);  // the file's last page
  is(kUnit, 2 * kUnit, kUnit, 2 * kUnit, 3 * 4096);
  history.note(kUnit + 8192, kUnit / 2);
  is(kUnit, 2 * kUnit, 2 * kUnit, 2 * kUnit);
}

TEST(FileHistory, TellsWindowsAtOneDistance) {
  FileHistory history;
  for (uint64_t number = 0; number < 5; ++number) {
    for (const uint64_t unit : {1, 0, 2}) {  // as lanes take them
      const auto windows = history.note((number * 16 + unit) * kUnit, kUnit);
      const bool is_new = unit == 1;
      if (number < 2 || !is_new) {
        EXPECT_EQ(windows.stride, 0u) << number << " " << unit;
      }
    }
  }
  const auto windows = history.note(80 * kUnit, kUnit);
  EXPECT_EQ(windows.stride, 16 * kUnit);
  EXPECT_EQ(windows.begin, 96 * kUnit);
  EXPECT_EQ(windows.length, 3 * kUnit);
  EXPECT_EQ(history.note(120 * kUnit, kUnit).stride, 0u) << "another distance";
  EXPECT_EQ(history.note(0, 4096).stride, 0u) << "back";
}

}  // namespace
}  // namespace braidfs::client::prefetch
