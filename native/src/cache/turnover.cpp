#include "cache/turnover.h"

#include <algorithm>

namespace braidfs::cache {

namespace {

constexpr uint64_t kPatience = 64;

}  // namespace

// Tracks a slice. True when that is new: it was not tracked, or was not known to come again.
bool Turnover::track(uint64_t hash, uint32_t bytes) {
  const uint64_t mark = (hash | 2) & ~kAgain;
  size_t slot = hash / 4 % kSlots;
  while (table_[slot] != 0 && (table_[slot] & ~kAgain) != mark) slot = (slot + 1) % kSlots;
  if (table_[slot] == 0) {
    table_[slot] = mark;
    ++tracked_;
    return true;
  }
  if ((table_[slot] & kAgain) != 0) return false;
  table_[slot] |= kAgain;
  ++again_;
  again_bytes_ += bytes;
  return true;
}

void Turnover::refused(uint64_t hash, uint32_t bytes, size_t held) {
  ++read_;
  if ((hash >> 40 & ((uint64_t{1} << sample_shift_) - 1)) != 0) return;
  idle_ = track(hash, bytes) ? 0 : idle_ + 1;
  if (again_ > 0 && again_ * 10 >= tracked_ * 9) {
    if (read_ < held) return;
    allowance_ = again_bytes_ << sample_shift_;
    ++turn_;
    read_ = 0;
    if (sample_shift_ > 0 && tracked_ < kTrackedMax / 4) --sample_shift_;
    begin();
  } else if (tracked_ >= kTrackedMax) {
    sample_shift_ = std::min(sample_shift_ + 1, kSampleShiftMax);
    begin();
  } else if (idle_ > tracked_ / 4 + kPatience) {  // the others do not come again
    begin();
  }
}

void Turnover::begin() {
  std::ranges::fill(table_, 0);
  tracked_ = again_ = 0;
  again_bytes_ = idle_ = 0;
}

void Turnover::count_up(Use& use) const noexcept {
  if (use.turn == turn_) return;
  use.before = use.turn + 1 == turn_ ? use.now : 0;
  use.now = 0;
  use.turn = turn_;
}

void Turnover::used(Use& use) noexcept {
  ++read_;
  count_up(use);
  ++use.now;
}

bool Turnover::is_stale(Use use, size_t record_count) const noexcept {
  count_up(use);
  return use.now * size_t{4} < record_count && use.before * size_t{4} < record_count;
}

}  // namespace braidfs::cache
