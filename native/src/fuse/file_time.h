// The clock that file systems stamp with.
#pragma once
#include <cstdint>
#include <ctime>

namespace braidfs::fuse {

// Nanoseconds since 1970.
inline int64_t file_time_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The same of seconds and nanoseconds as the kernel tells them.
inline int64_t file_time_ns(uint64_t seconds, uint32_t nanoseconds) noexcept {
  return static_cast<int64_t>(seconds) * 1'000'000'000 + nanoseconds;
}

}  // namespace braidfs::fuse
