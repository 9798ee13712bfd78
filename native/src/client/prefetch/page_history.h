// READs that fill the kernel's page cache, of large files: what lies beyond a READ is fetched when
// what lies before it was asked for, and the next windows of several at one distance
// (docs/decisions/0043-mapped-models.md).
//
// The kernel asks for each page once, in windows around what is touched or ahead of it, for several
// threads at once: so the order of READs says little, and what has been asked for says most
// (file_history.h). Beyond a READ as much is wanted as was asked for before it, up to
// kPagesAheadMax, of what was not asked for. Until more was asked for than the kernel's own window
// it may be just that, around one page; but not at the file's beginning. So a program that stops
// has cost at most as much as it read. Threads: a policy's (policy.h).
#pragma once
#include <cstdint>

#include "client/prefetch/file_history.h"
#include "client/prefetch/file_states.h"
#include "client/prefetch/policy.h"

namespace braidfs::client::prefetch {

class PageHistory final : public Policy {
 public:
  // Smaller READs are of a file that is read already: threads that touch one window at once make
  // the kernel read it in bits.
  static constexpr uint32_t kReadMin = 128u << 10;
  static constexpr uint64_t kFirstMin = 4u << 20;   // before a READ, from the file's beginning
  static constexpr uint64_t kAroundMax = 8u << 20;  // before any other READ: the kernel's window,
                                                    // twice its default by POSIX_FADV_SEQUENTIAL
  static constexpr uint64_t kPagesAheadMax = 32u << 20;
  static constexpr uint64_t kNearBytes = 4u << 20;  // behind a READ; what is beyond is far
  static constexpr uint64_t kSkipMax = 64u
                                       << 20;  // of what was asked for, in search of what was not
  static constexpr uint64_t kWindowMax = 16u << 20;  // of windows at one distance
  static constexpr uint64_t kWindowsMax = 4;

  explicit PageHistory(Share& share) : share_(share) {}

  bool watches(const CachedExtent& extent, For whom) const noexcept override {
    return whom == For::kPages && extent.file_size >= kLargeFileMin &&
           (extent.length >= kReadMin || any());
  }
  bool any() const noexcept override { return files_.any() || share_.any(); }
  void read(Plan& plan, For whom) override;
  void closed(uint64_t ino, bool is_last, Table& table) override;
  bool expire(Table& /*table*/, Clock::time_point now) override { return files_.expire(now); }

 private:
  void want_windows(Plan& plan, const FileHistory::Windows& windows) const;
  void want_beyond(Plan& plan, const FileHistory& history) const;

  Share& share_;
  FileStates<FileHistory> files_;
};

}  // namespace braidfs::client::prefetch
