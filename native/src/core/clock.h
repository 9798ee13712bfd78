// The clock of the data path: the machine's monotonic clock, or the one that a test has set.
//
// Whatever measures or waits for time reads it here. So a test may let hours pass in a moment, and
// let them pass again in the same way (tests/world). Threads: now() and since_boot_ns() ANY THREAD;
// set() before other threads begin.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace braidfs {

class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;
  using Source = time_point (*)() noexcept;

  static time_point now() noexcept {
    const Source source = source_.load(std::memory_order_relaxed);
    return source == nullptr ? std::chrono::steady_clock::now() : source();
  }
  // In nanoseconds. This clock also counts the time for which the host slept.
  static int64_t since_boot_ns() noexcept {
    if (const Source source = source_.load(std::memory_order_relaxed))
      return std::chrono::nanoseconds(source().time_since_epoch()).count();
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  static void set(Source source) noexcept { source_ = source; }  // nullptr: the machine's

 private:
  static inline std::atomic<Source> source_ = nullptr;
};

}  // namespace braidfs
