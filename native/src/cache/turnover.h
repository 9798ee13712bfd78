// Decides when the content of a full cache is replaced by what is being read instead. Pure; guarded
// by its owner.
//
// An epoch larger than the cache reads everything once, in any order: least-recently-used would
// drop each slice just before it is needed. So a full cache takes nothing new by itself. Slices
// that were refused are remembered (a sample of them, by hash). When nine tenths of these were
// offered *again*, and as many slices were read as the cache holds, a *turn* ends: by then,
// everything that is read at all was read. A segment of which less than a quarter was read in that
// turn and in the one before is stale; stale segments may be replaced by as many bytes as came
// again.
//
// So an epoch over a larger data set reads every cached slice in each turn: nothing is replaced,
// and the hit rate stays (cache / data set). A scan that does not come again ends no turn. Another
// data set replaces the last one after it was read a few times.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace braidfs::cache {

class Turnover {
 public:
  static constexpr size_t kTrackedMax = 12u << 10;

  // How many of a segment's records were read in this turn and in the one before.
  struct Use {
    uint32_t now = 0;
    uint32_t before = 0;
    uint64_t turn = 0;  // the turn that `now` counts
  };

  Turnover() : table_(kSlots, 0) {}

  // A slice was offered that is not there, and there is no room for it. `held`: the cache's number
  // of records.
  void refused(uint64_t hash, uint32_t bytes, size_t held);
  // may_replace(): whether so many bytes may take the place of stale ones. replaced(): so many were
  // removed.
  bool may_replace(uint32_t bytes) const noexcept { return allowance_ >= bytes; }
  void replaced(uint64_t bytes) noexcept { allowance_ -= std::min(allowance_, bytes); }

  void used(Use& use) noexcept;
  bool is_stale(Use use, size_t record_count) const noexcept;
  // The use of a segment that is being written: it counts as not stale in any turn before this one.
  Use fresh(size_t record_count) const noexcept {
    return {.now = 0, .before = static_cast<uint32_t>(record_count), .turn = turn_};
  }

  uint64_t turn() const noexcept { return turn_; }

 private:
  static constexpr size_t kSlots = 16u << 10;
  static constexpr uint32_t kSampleShiftMax = 20;
  static constexpr uint64_t kAgain = 1;  // the lowest bit of a slot; a slot of 0 is empty

  void count_up(Use& use) const noexcept;
  void begin();
  bool track(uint64_t hash, uint32_t bytes);

  std::vector<uint64_t> table_;
  size_t tracked_ = 0;
  size_t again_ = 0;
  uint64_t again_bytes_ = 0;
  uint32_t sample_shift_ = 0;  // one of 2^sample_shift_ hashes is tracked
  uint64_t idle_ = 0;          // consecutive refusals of slices already known to come again
  uint64_t read_ = 0;          // slices in this turn, found or refused
  uint64_t allowance_ = 0;
  uint64_t turn_ = 1;
};

}  // namespace braidfs::cache
