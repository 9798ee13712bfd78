// What the kernel has asked for of one file lately, to fill its page cache: how dense that is
// before a place, and whether it comes in windows of one length at one distance, as when a loader
// touches the beginning of each tensor of a mapped file (docs/decisions/0043-mapped-models.md).
//
// The kernel asks for a page once, for as long as it keeps it. When it asks for a page again it has
// lost it, and then the whole history is forgotten. Pages are counted by units of 1 MiB, with the
// first and the last one of each. Invariant: at most kRegionsMax regions of 64 units are known.
// Threads: none of its own, guarded by whoever has it. Not here: what is fetched (page_history.h).
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
  static constexpr uint64_t kNear = 4 * kUnit;  // a READ so near belongs to the same window
  static constexpr uint64_t kStrideMax = 1u << 30;
  static constexpr size_t kRegionsMax = 1024;  // of 64 units each

  // How many bytes before a place were asked for, as far back as at least three of four were; and
  // whether that reaches the file's beginning.
  struct Run {
    uint64_t bytes = 0;
    bool is_first = false;
  };
  // A stretch of the file, and how many bytes of it were asked for.
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t asked = 0;
  };
  // Where the next windows are expected: at `begin`, `begin` + `stride`, and so on. stride 0:
  // nowhere.
  struct Windows {
    uint64_t begin = 0;
    uint64_t length = 0;
    uint64_t stride = 0;
  };

  // Notes a READ for the page cache. When a new window begins at the distance of the one before,
  // this returns where the next ones are expected.
  Windows note(uint64_t offset, uint32_t length);
  Run run_before(uint64_t end) const;
  // The first stretch from `at` on, before `to` and in the same unit, of which at most half was
  // asked for; empty if there is none.
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
  uint64_t begin_ = 0;  // of the newest window
  uint64_t end_ = 0;
  uint64_t length_ = 0;  // of the one before
  uint64_t stride_ = 0;  // from it to the newest
};

}  // namespace braidfs::client::prefetch
