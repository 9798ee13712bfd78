// The page history of one file: what the kernel has asked for lately to fill its page cache. It
// tells how much was asked for before a place, and whether READs come in windows of one length at
// one distance, as when a loader touches the beginning of each tensor of a mapped file
// (docs/decisions/0043-mapped-models.md).
//
// The kernel asks for a page once, for as long as it keeps the page. If it asks again, it has
// dropped the page, and then the whole history is forgotten. Pages are counted in units of 1 MiB,
// with the first and the last page of each unit. Invariant: at most kRegionsMax regions of 64 units
// are known. Threads: none of its own; the owner guards it. Not here: what is fetched
// (page_history.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace braidfs::client::prefetch {

class FileHistory {
 public:
  static constexpr uint64_t kUnit = 1u << 20;
  static constexpr uint64_t kPage = 4u << 10;
  static constexpr uint64_t kLookBack = 32 * kUnit;
  // A READ at most so far behind a window belongs to it.
  static constexpr uint64_t kNear = 4 * kUnit;
  static constexpr uint64_t kStrideMax = 1u << 30;
  static constexpr size_t kRegionsMax = 1024;  // of 64 units each

  // The bytes before a place that were asked for, as far back as at least three quarters of them
  // were, and whether they reach back to the file's beginning.
  struct Run {
    uint64_t bytes = 0;
    bool is_first = false;
  };
  // A stretch of the file, and how many of its bytes were asked for.
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t asked = 0;
  };
  // The next windows are expected at `begin`, `begin` + `stride`, and so on. stride 0: no window is
  // expected.
  struct Windows {
    uint64_t begin = 0;
    uint64_t length = 0;
    uint64_t stride = 0;
  };

  // Notes a READ for the page cache. If it begins a new window at the same distance as the one
  // before, the result says where the next windows are expected.
  Windows note(uint64_t offset, uint32_t length);
  Run run_before(uint64_t end) const;
  // The first stretch in [at, to), within one unit, of which at most half was asked for; empty if
  // there is none.
  Stretch unasked(uint64_t at, uint64_t to) const;

 private:
  static constexpr uint64_t kRegion = 64;
  struct Unit {
    uint16_t pages = 0;
    uint8_t first = 0;
    uint8_t last = 0;
    uint64_t span() const noexcept { return pages == 0 ? 0 : last - first + 1u; }
  };
  using Region = std::array<Unit, kRegion>;

  Unit unit(uint64_t number) const;
  bool count(uint64_t offset, uint64_t end);
  Windows window(uint64_t offset, uint64_t end);

  std::unordered_map<uint64_t, Region> regions_{};
  uint64_t begin_ = 0;  // where the newest window begins
  uint64_t end_ = 0;
  uint64_t length_ = 0;  // of the window before it
  uint64_t stride_ = 0;  // from that window to the newest
};

}  // namespace braidfs::client::prefetch
