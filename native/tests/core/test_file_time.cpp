// Times as records store them.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "core/file_time.h"

namespace braidfs {
namespace {

constexpr int64_t kLast = 15'032'385'535;  // ext4 can store no later time: 2446-05-10

FileTime again(int64_t seconds, uint32_t nanoseconds) {
  return file_time(file_time_ns(static_cast<uint64_t>(seconds), nanoseconds));
}

TEST(FileTime, IsKeptToTheNanosecondFrom1901To2446) {
  for (const int64_t seconds :
       {int64_t{0}, int64_t{-1}, kFileTimeMin_s + 1, int64_t{1} << 31, int64_t{1} << 32,
        int64_t{9'223'372'036}, int64_t{9'223'372'037}, int64_t{1} << 33, kLast - 1}) {
    for (const uint32_t nanoseconds : {0u, 1u, 999'999'999u}) {
      const FileTime time = again(seconds, nanoseconds);
      EXPECT_EQ(time.seconds, seconds);
      EXPECT_EQ(time.nanoseconds, nanoseconds);
    }
  }
}

TEST(FileTime, BeyondItIsTheNearestThatCanBeKept) {
  for (const int64_t seconds :
       {kLast, kLast + 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(again(seconds, 7).seconds, kLast);
    EXPECT_EQ(again(seconds, 7).nanoseconds, 0u);
  }
  for (const int64_t seconds :
       {kFileTimeMin_s, kFileTimeMin_s - 1, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(again(seconds, 7).seconds, kFileTimeMin_s);
    EXPECT_EQ(again(seconds, 7).nanoseconds, 0u);
  }
}

TEST(FileTime, OfRecordsOfBeforeIsTheSame) {
  for (const int64_t time_ns : {int64_t{0}, int64_t{-1}, int64_t{1'800'000'000'123'456'789},
                                std::numeric_limits<int64_t>::max()}) {
    const FileTime time = file_time(time_ns);
    EXPECT_EQ(static_cast<__int128>(time.seconds) * kNanosecondsPerSecond + time.nanoseconds,
              time_ns);
  }
}

}  // namespace
}  // namespace braidfs
