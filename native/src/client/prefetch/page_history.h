// The policy for READs of large files that fill the kernel's page cache: bytes beyond a READ are
// fetched if the bytes before it were asked for, and so are the next of several windows at one
// distance (docs/decisions/0043-mapped-models.md).
//
// The kernel asks for each page once, in windows around the page that is touched or ahead of it,
// and for several threads at once. So the order of READs tells little, and what has been asked for
// tells most (file_history.h). Beyond a READ, the policy wants as many bytes as were asked for
// before it, at most kPagesAheadMax, and only bytes that were not asked for. So a program that
// stops has made it fetch at most as much as the program read. It wants nothing before more bytes
// were asked for than the kernel's own window around one page has; at the file's beginning
// kFirstMin bytes are enough. Threads: as policy.h says.
#pragma once
#include <cstdint>

#include "client/prefetch/file_history.h"
#include "client/prefetch/file_states.h"
#include "client/prefetch/policy.h"

namespace braidfs::client::prefetch {

class PageHistory final : public Policy {
 public:
  // A smaller READ belongs to a file that is being read already: threads that touch one window at
  // once make the kernel read it in small parts.
  static constexpr uint32_t kReadMin = 128u << 10;
  // So many bytes must have been asked for before a READ, if they begin with the file ...
  static constexpr uint64_t kFirstMin = 4u << 20;
  // ... and more than so many before any other READ: this is the kernel's own window, which
  // POSIX_FADV_SEQUENTIAL makes twice as large as its default.
  static constexpr uint64_t kAroundMax = 8u << 20;
  static constexpr uint64_t kPagesAheadMax = 32u << 20;
  static constexpr uint64_t kNearBytes = 4u << 20;  // behind a READ; bytes beyond are far
  // The search for bytes that were not asked for ends after so many that were.
  static constexpr uint64_t kSkipMax = 64u << 20;
  static constexpr uint64_t kWindowMax = 16u << 20;  // the length of windows at one distance
  static constexpr uint64_t kWindowsMax = 4;

  explicit PageHistory(Share& share) : share_(share) {}

  bool watches(const CachedExtent& extent, For whom) const noexcept override {
    return whom == For::kPages && extent.file_size >= kLargeFileMin &&
           (extent.length >= kReadMin || any());
  }
  bool any() const noexcept override { return files_.any() || share_.any(); }
  bool knows(uint64_t ino) const override { return files_.has(ino); }
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
