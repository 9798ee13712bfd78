// How much room a target has left. capacity_bytes limits what its objects use; the device's own
// free space less the reserve limits it too, so that log and record pages still find room when
// writers are told ENOSPC (rule 24). Used bytes are kept by adding and subtracting blocks: an
// estimate that is counted afresh when a target was not stopped cleanly. Inodes are limited
// likewise: a few stay free for the log and the superblock, whose next versions are new files. ANY
// THREAD.
#pragma once
#include <atomic>
#include <cstdint>

#include "store/device.h"

namespace braidfs::store {

class Space {
 public:
  Space(Device& device, uint64_t capacity_bytes, uint64_t reserve_bytes) noexcept
      : device_(device), capacity_(capacity_bytes), reserve_(reserve_bytes) {}

  // Whether `bytes` more may be allocated.
  bool admits(uint64_t bytes);
  // Whether the file of one more object, with its first block, may be made.
  bool admits_object();
  void add(int64_t bytes) noexcept;
  void add_file() noexcept { --device_files_free_; }
  void reset(uint64_t used_bytes) noexcept { used_ = static_cast<int64_t>(used_bytes); }
  uint64_t used() const noexcept;
  void refresh();
  uint64_t bytes_total() const noexcept;
  uint64_t bytes_free() const noexcept;
  uint64_t files_total() const noexcept { return device_files_total_; }  // 0: without a limit
  uint64_t files_free() const noexcept;

 private:
  static constexpr int64_t kFilesReserve = 64;        // many times what a rotation of the log makes
  static constexpr int64_t kRefreshBytes = 16 << 20;  // statvfs once per so much
  Device& device_;
  const uint64_t capacity_;
  const uint64_t reserve_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> device_free_{0};
  std::atomic<uint64_t> device_total_{0};
  std::atomic<int64_t> device_files_free_{0};
  std::atomic<uint64_t> device_files_total_{0};
  std::atomic<int64_t> since_refresh_{kRefreshBytes};
};

}  // namespace braidfs::store
