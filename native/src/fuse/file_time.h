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

}  // namespace braidfs::fuse
