// Programs that read a large file from one place on, past the page cache (O_DIRECT): what comes
// next is fetched before it is asked for (docs/decisions/0040-streams.md).
//
// A run is READs of one size, each where the last one ended, a little out of order as lanes take
// them at once. A file has some runs, told apart by where they are. Beyond the newest READ of a run
// as much is wanted as the run has read, up to kWindowMax, in extents of the READs' size: so a
// program that stops has cost at most as much as it read. Random and strided READs are no run.
// Threads: a policy's (policy.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "client/prefetch/file_states.h"
#include "client/prefetch/policy.h"

namespace braidfs::client::prefetch {

class Sequential final : public Policy {
 public:
  static constexpr uint32_t kReadMin = 128u << 10;  // smaller READs are of no run
  static constexpr uint64_t kWindowMax = 16u << 20;
  static constexpr uint64_t kNearBytes = 4u << 20;  // behind a READ; what is beyond is far
  static constexpr uint32_t kRunMin = 4;            // READs
  static constexpr uint32_t kEarlyMax = 8;  // that came before an earlier one, in sizes of READs
  static constexpr size_t kRunsMax = 8;     // of a file

  explicit Sequential(Share& share) : share_(share) {}

  bool watches(const CachedExtent& extent, For whom) const noexcept override {
    return whom == For::kProgram && extent.file_size >= kLargeFileMin && extent.length >= kReadMin;
  }
  bool any() const noexcept override { return files_.any() || share_.any(); }
  void read(Plan& plan, For whom) override;
  void closed(uint64_t ino, bool is_last, Table& table) override;
  bool expire(Table& /*table*/, Clock::time_point now) override { return files_.expire(now); }

 private:
  struct Run {
    uint32_t size = 0;   // of its READs
    uint32_t count = 0;  // of READs that followed each other
    uint64_t next = 0;   // where the next one begins
    uint64_t ahead = 0;  // end of what was wanted
    uint32_t early = 0;  // bit n: the READ that begins n + 1 sizes behind next was seen
    Clock::time_point used{};
  };
  using Runs = std::array<Run, kRunsMax>;

  static bool follow(Run& run, const CachedExtent& extent);
  static Run& run_of(Runs& runs, const CachedExtent& extent, Clock::time_point now);
  void want(Plan& plan, Run& run) const;

  Share& share_;
  FileStates<Runs> files_;
};

}  // namespace braidfs::client::prefetch
