// Whether the small files that programs open are read whole: then the next one may be fetched as it
// is opened, and its READs spared (docs/decisions/0045-fetched-with-the-open.md). Once fetched a
// file's READs are not seen, so every kProbeEvery-th open is a probe, which is left as ever and
// judged at its close. ANY THREAD.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace braidfs::client {

class WholeReads {
 public:
  static constexpr int kScoreEnough = 16;
  static constexpr int kScoreMax = 32;
  static constexpr int kCostOfOther = 8;  // of a file that was not read, or not whole
  static constexpr uint32_t kProbeEvery = 16;

  // Off in the beginning: nothing is fetched.
  void turn(bool on) noexcept { on_ = on; }
  // Opens are probed although nothing is fetched.
  void watch(bool on) noexcept { watches_ = on; }
  bool is_watching() const noexcept { return on_ || watches_; }
  bool are_usual() const noexcept { return score_ >= kScoreEnough; }

  // Of an open: true to fetch, false for a probe.
  bool fetches() noexcept {
    if (!on_ || !are_usual()) return false;
    return opens_.fetch_add(1, std::memory_order_relaxed) % kProbeEvery != 0;
  }

  // A probe was closed after READs of so many bytes.
  void judge(uint64_t bytes_read, uint64_t size) noexcept {
    const bool whole = bytes_read >= size - size / 4;
    int score = score_.load(std::memory_order_relaxed);
    while (!score_.compare_exchange_weak(
        score, std::clamp(score + (whole ? 1 : -kCostOfOther), 0, kScoreMax),
        std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<bool> on_{false};
  std::atomic<bool> watches_{false};
  std::atomic<int> score_{0};
  std::atomic<uint32_t> opens_{0};
};

}  // namespace braidfs::client
