// Times of files: the clock that file systems stamp with, and how records keep what the kernel
// tells in seconds and nanoseconds. fscommon/file_time.py is the same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <ctime>

namespace braidfs {

inline constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// What can be kept, as on ext4: 1901-12-13 to 2446-05-10. These nanoseconds are 2^34 * 10^9, which
// fit into 64 bits: a time beyond 2262 is kept modulo 2^64 (docs/decisions/0056-file-times.md).
inline constexpr int64_t kFileTimeMin_s = -(int64_t{1} << 31);
inline constexpr int64_t kFileTimeMax_s = (int64_t{1} << 34) - (int64_t{1} << 31) - 1;

// Now, in nanoseconds since 1970.
inline int64_t file_time_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return int64_t{now.tv_sec} * kNanosecondsPerSecond + now.tv_nsec;
}

// As it is kept; what lies beyond is the nearest time that can be, as Linux does it.
inline int64_t file_time_ns(uint64_t seconds, uint32_t nanoseconds) noexcept {
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t kept = std::clamp(whole, kFileTimeMin_s, kFileTimeMax_s);
  const bool is_within = kFileTimeMin_s < whole && whole < kFileTimeMax_s;
  const uint64_t scaled = static_cast<uint64_t>(kept) * kNanosecondsPerSecond;  // modulo 2^64
  return static_cast<int64_t>(scaled + (is_within ? nanoseconds : 0));
}

struct FileTime {
  int64_t seconds;
  uint32_t nanoseconds;
};

// The time of a stored value. An old record may have a time before 1901: it stands for a time that
// is 2^64 nanoseconds later.
inline FileTime file_time(int64_t kept_ns) noexcept {
  constexpr int64_t kMin_ns = kFileTimeMin_s * kNanosecondsPerSecond;
  const uint64_t since = static_cast<uint64_t>(kept_ns) - static_cast<uint64_t>(kMin_ns);
  return {kFileTimeMin_s + static_cast<int64_t>(since / kNanosecondsPerSecond),
          static_cast<uint32_t>(since % kNanosecondsPerSecond)};
}

}  // namespace braidfs
