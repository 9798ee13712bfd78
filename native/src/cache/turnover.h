// Decides when what a full cache holds makes room for what is read instead. Pure; guarded by its
// owner.
//
// An epoch larger than the cache reads everything once, in any order: least-recently-used would
// throw each slice away just before its turn. So a full cache takes nothing new by itself. Slices
// that were offered in vain are remembered (a sample of them, by hash); once nine tenths were
// offered *again*, and as many slices were read as the cache holds, a *turn* ends: by then whatever
// is read at all was read. Segments of which less than a quarter was read in that turn and the one
// before are stale, and may go for as many bytes as came again. An epoch over a larger data set
// reads every cached slice in each turn, so nothing goes and the hits stay (cache / data set) of
// all; a scan that does not come again ends no turn; another data set takes the place of the last
// one when it was read some times.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace braidfs::cache {

class Turnover {
 public:
  static constexpr size_t kTrackedMax = 12u << 10;

  // How many of a segment's records were read in this turn and in the last one.
  struct Use {
    uint32_t now = 0;
    uint32_t before = 0;
    uint64_t turn = 0;  // that `now` counts
  };

  Turnover() : table_(kSlots, 0) {}

  // A slice was offered that is not there and finds no room. held: records of the cache.
  void refused(uint64_t hash, uint32_t bytes, size_t held);
  // Whether so many bytes may come in place of stale ones; replaced(): so many have gone.
  bool may_replace(uint32_t bytes) const noexcept { return allowance_ >= bytes; }
  void replaced(uint64_t bytes) noexcept { allowance_ -= std::min(allowance_, bytes); }

  void used(Use& use) noexcept;
  bool is_stale(Use use, size_t record_count) const noexcept;
  // Of a segment that is being written: it was not stale in any turn before this one.
  Use fresh(size_t record_count) const noexcept {
    return {.now = 0, .before = static_cast<uint32_t>(record_count), .turn = turn_};
  }

  uint64_t turn() const noexcept { return turn_; }

 private:
  static constexpr size_t kSlots = 16u << 10;
  static constexpr uint32_t kSampleShiftMax = 20;
  static constexpr uint64_t kAgain = 1;  // the lowest bit of a slot; 0 is an empty one

  void count_up(Use& use) const noexcept;
  void begin();
  bool track(uint64_t hash, uint32_t bytes);

  std::vector<uint64_t> table_;
  size_t tracked_ = 0;
  size_t again_ = 0;
  uint64_t again_bytes_ = 0;
  uint32_t sample_shift_ = 0;  // one of 2^so many hashes is tracked
  uint64_t idle_ = 0;          // refusals in a row of what was known to come again
  uint64_t read_ = 0;          // slices in this turn, hit or refused
  uint64_t allowance_ = 0;
  uint64_t turn_ = 1;
};

}  // namespace braidfs::cache
