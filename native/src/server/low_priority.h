// While it exists, the calling thread's requests to devices come after those of other threads,
// where the device has a scheduler that knows priorities. Threads: the one that made it.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

namespace braidfs::server {

class LowPriority {
 public:
  LowPriority() : before_(::syscall(SYS_ioprio_get, kThread, 0)) { set(kLowest); }
  ~LowPriority() {
    if (before_ >= 0) set(before_);
  }
  LowPriority(const LowPriority&) = delete;
  LowPriority& operator=(const LowPriority&) = delete;

 private:
  // linux/ioprio.h; the C library has no header for these.
  static constexpr int kThread = 1;
  static constexpr long kLowest = (2 << 13) | 7;  // of the class "best effort"

  static void set(long priority) { (void)::syscall(SYS_ioprio_set, kThread, 0, priority); }

  const long before_;
};

}  // namespace braidfs::server
