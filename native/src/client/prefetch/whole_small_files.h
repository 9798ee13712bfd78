// Whether programs read the small files that they open whole. If so, the next one is fetched with
// its OPEN into the kernel's pages (docs/decisions/0045-fetched-with-the-open.md), and storage
// servers are told of those that a directory's grant brought (0049-fetched-ahead.md).
//
// READs of a file that was fetched with its OPEN are not seen here. So every kProbeEvery-th open is
// a probe: its file is not fetched, and at its close it shows whether it was read whole. All opens
// are probes until the score of earlier probes reaches kScoreEnough. Invariant: the score is
// between 0 and kScoreMax. Threads: ANY THREAD, with atomics alone: an OPEN takes no lock for it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "client/prefetch/policy.h"
#include "client/records.h"

namespace braidfs::client::prefetch {

class WholeSmallFiles {
 public:
  static constexpr int kScoreEnough = 16;
  static constexpr int kScoreMax = 32;
  static constexpr int kCostOfOther = 8;  // what a file costs that was not read whole
  static constexpr uint32_t kProbeEvery = 16;

  // It is off at first. fills_pages: files may be fetched with their OPEN.
  void turn(bool on, bool fills_pages) noexcept {
    on_ = on;
    fills_pages_ = fills_pages;
  }
  bool is_on() const noexcept { return on_; }
  bool are_usual() const noexcept { return score_ >= kScoreEnough; }

  // Decides what to do when a file of that size is opened, and nobody else has it open.
  Sink opened(uint64_t size) noexcept {
    if (!on_ || size == 0 || size > Policy::kSmallFileMax) return Sink::kNone;
    if (!fills_pages_ || !are_usual()) return Sink::kProbe;
    const bool is_probe = opens_.fetch_add(1, std::memory_order_relaxed) % kProbeEvery == 0;
    return is_probe ? Sink::kProbe : Sink::kKernelPages;
  }

  // A probe was closed after READs of so many bytes.
  void probed(uint64_t bytes_read, uint64_t size) noexcept {
    const bool is_whole = bytes_read >= size - size / 4;
    int score = score_.load(std::memory_order_relaxed);
    while (!score_.compare_exchange_weak(
        score, std::clamp(score + (is_whole ? 1 : -kCostOfOther), 0, kScoreMax),
        std::memory_order_relaxed)) {
    }
  }

  // A directory's grant brought this file. Returns kServers if the file is not large and its bytes
  // lie in one object.
  Sink granted(const Attributes& attributes, const FileView& view) const noexcept {
    const uint64_t size_max = std::min<uint64_t>(view.chunk_size, limits::kFetchLengthMax);
    const bool is_fit =
        attributes.size > 0 && attributes.size <= size_max && view.inline_bytes.empty();
    return on_ && is_fit ? Sink::kServers : Sink::kNone;
  }

 private:
  std::atomic<bool> on_{false};
  std::atomic<bool> fills_pages_{false};
  std::atomic<int> score_{0};
  std::atomic<uint32_t> opens_{0};
};

}  // namespace braidfs::client::prefetch
