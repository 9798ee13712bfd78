#include "core/clock.h"

#include <gtest/gtest.h>

namespace braidfs {
namespace {

using namespace std::chrono_literals;

Clock::time_point given{};

TEST(Clock, IsTheMachinesUnlessATestHasSetOne) {
  const auto before = std::chrono::steady_clock::now();
  EXPECT_GE(Clock::now(), before);
  given = Clock::time_point{77s};
  Clock::set([]() noexcept { return given; });
  EXPECT_EQ(Clock::now(), given);
  EXPECT_EQ(Clock::since_boot_ns(), 77'000'000'000);
  given += 2h;
  EXPECT_EQ(Clock::now(), Clock::time_point{77s} + 2h);
  Clock::set(nullptr);
  EXPECT_LT(Clock::now() - before, 1h);
}

}  // namespace
}  // namespace braidfs
