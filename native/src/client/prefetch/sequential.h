// The policy for programs that read a large file sequentially past the page cache (O_DIRECT): the
// bytes that follow are fetched before they are asked for (docs/decisions/0040-streams.md).
//
// A run is a series of READs of one size, each of which begins where the last one ended; they may
// come a little out of order, since lanes take them at the same time. A file may have several runs,
// told apart by their places. Beyond the newest READ of a run, the policy wants as many bytes as
// the run has read, at most kWindowMax, in extents of the READs' size. So a program that stops has
// made it fetch at most as much as the program read. Random and strided READs form no run. Threads:
// as policy.h says.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "client/prefetch/file_states.h"
#include "client/prefetch/policy.h"

namespace braidfs::client::prefetch {

class Sequential final : public Policy {
 public:
  static constexpr uint32_t kReadMin = 128u << 10;  // smaller READs form no run
  static constexpr uint64_t kWindowMax = 16u << 20;
  static constexpr uint64_t kNearBytes = 4u << 20;  // behind a READ; bytes beyond are far
  static constexpr uint32_t kRunMin = 4;            // READs that make a run
  static constexpr uint32_t kEarlyMax = 8;          // how many READs early a READ may come
  static constexpr size_t kRunsMax = 8;             // in one file

  explicit Sequential(Share& share) : share_(share) {}

  bool watches(const CachedExtent& extent, For whom) const noexcept override {
    return whom == For::kProgram && extent.file_size >= kLargeFileMin && extent.length >= kReadMin;
  }
  bool any() const noexcept override { return files_.any() || share_.any(); }
  bool knows(uint64_t ino) const override { return files_.has(ino); }
  void read(Plan& plan, For whom) override;
  void closed(uint64_t ino, bool is_last, Table& table) override;
  bool expire(Table& /*table*/, Clock::time_point now) override { return files_.expire(now); }

 private:
  struct Run {
    uint32_t size = 0;   // of its READs
    uint32_t count = 0;  // of READs that followed each other
    uint64_t next = 0;   // where the next READ begins
    uint64_t ahead = 0;  // where the wanted bytes end
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
