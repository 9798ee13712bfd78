#include "store/space.h"

#include <algorithm>

#include "store/layout.h"

namespace braidfs::store {

void Space::refresh() {
  DeviceSpace space;
  if (device_.space(space) < 0) return;
  device_free_ = static_cast<int64_t>(space.bytes_free);
  device_total_ = space.bytes_total;
  device_files_free_ = static_cast<int64_t>(std::min<uint64_t>(space.files_free, INT64_MAX));
  device_files_total_ = space.files_total;
  since_refresh_ = 0;
}

bool Space::admits(uint64_t bytes) {
  const auto more = static_cast<int64_t>(bytes);
  if (capacity_ != 0 && used_ + more > static_cast<int64_t>(capacity_)) return false;
  const auto reserve = static_cast<int64_t>(reserve_);
  const bool low = device_free_ - more < reserve + kRefreshBytes;
  if (low || since_refresh_ >= kRefreshBytes) refresh();
  return device_free_ - more >= reserve;
}

bool Space::admits_object() {
  if (!admits(kBlockSize)) return false;
  if (device_files_total_ == 0) return true;
  if (device_files_free_ <= kFilesReserve) refresh();
  return device_files_free_ > kFilesReserve;
}

void Space::add(int64_t bytes) noexcept {
  used_ += bytes;
  device_free_ -= bytes;
  if (bytes > 0) since_refresh_ += bytes;
}

uint64_t Space::used() const noexcept { return static_cast<uint64_t>(std::max<int64_t>(used_, 0)); }

uint64_t Space::bytes_total() const noexcept {
  const uint64_t device = device_total_;
  return capacity_ == 0 ? device : std::min(capacity_, device);
}

uint64_t Space::bytes_free() const noexcept {
  const int64_t device = std::max<int64_t>(device_free_ - static_cast<int64_t>(reserve_), 0);
  if (capacity_ == 0) return static_cast<uint64_t>(device);
  const int64_t left = std::max<int64_t>(static_cast<int64_t>(capacity_) - used_, 0);
  return static_cast<uint64_t>(std::min(device, left));
}

uint64_t Space::files_free() const noexcept {
  return static_cast<uint64_t>(std::max<int64_t>(device_files_free_ - kFilesReserve, 0));
}

}  // namespace braidfs::store
