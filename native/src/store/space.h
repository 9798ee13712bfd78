// How much space a target has left.
//
// capacity_bytes limits what the objects use. The device's own free space minus the reserve limits
// it as well, so that log and record pages still find space when writers get ENOSPC (rule 24). The
// count of used bytes is kept by adding and subtracting blocks: it is an estimate, and is counted
// afresh when a target was not stopped cleanly. Inodes are limited likewise: a few stay free for
// the log and the superblock, whose next versions are new files.
//
// Threads: ANY THREAD, atomics.
#pragma once
#include <atomic>
#include <cstdint>

#include "store/device.h"

namespace braidfs::store {

class Space {
 public:
  Space(Device& device, uint64_t capacity_bytes, uint64_t reserve_bytes) noexcept
      : device_(device), capacity_(capacity_bytes), reserve_(reserve_bytes) {}

  // True when `bytes` more may be allocated.
  bool admits(uint64_t bytes);
  // True when the file of one more object may be made, with its first block.
  bool admits_object();
  void add(int64_t bytes) noexcept;
  void add_file() noexcept { --device_files_free_; }
  void reset(uint64_t used_bytes) noexcept { used_ = static_cast<int64_t>(used_bytes); }
  uint64_t used() const noexcept;
  void refresh();
  uint64_t bytes_total() const noexcept;
  uint64_t bytes_free() const noexcept;
  uint64_t files_total() const noexcept { return device_files_total_; }  // 0: no limit
  uint64_t files_free() const noexcept;

 private:
  // Many times what a rotation of the log creates.
  static constexpr int64_t kFilesReserve = 64;
  static constexpr int64_t kRefreshBytes = 16 << 20;  // statvfs is called once per so many bytes
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
