// Copies of whole files, each a file of its own that the kernel can read by itself
// (docs/decisions/0041-passthrough.md). Made from the slices of a store that has all of them,
// checked again after each start of this program, by a niced thread of its own; nobody waits for
// it.
//
// Space: bytes_max, for the files and their sums. A copy makes room for another one if nobody has
// it open and it was not opened since that other file was asked for twice: an epoch over more than
// there is room for keeps what is there, another data set takes its place. One copy for each inode.
// Errors of the disk, a full one included, stop the making for a while; they cost copies and never
// more. ANY THREAD, guarded by mu_; the files are the thread's, but for those that open() opens.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/copy_files.h"
#include "cache/store.h"

namespace braidfs::cache {

class Copies {
 public:
  static constexpr uint64_t kFileBytesMin =
      4u << 20;  // an open of a smaller one costs more than it saves
  static constexpr size_t kWantedMax = 256;
  static constexpr size_t kAskedMax = 4096;
  static constexpr auto kFaultRest = std::chrono::seconds(60);

  Copies(std::string directory, uint64_t bytes_max, const Cluster& cluster, Store& store);
  ~Copies() { stop(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Once; before it there is no copy, and none is made.
  void start();
  void stop();

  // The file opened, if there is a copy that was checked; else one is wanted. Whoever gets it calls
  // closed(), as often.
  net::UniqueFd open(const WholeFile& file);
  void closed(const WholeFile& file);
  // Everything that was wanted is made, or is not. For tests.
  void settle();

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  struct Copy {
    WholeFile file;
    bool is_checked = false;
    uint32_t users = 0;
    uint64_t opened = 0;  // when; by clock_
  };
  struct Asked {
    uint64_t last = 0;
    uint64_t before = 0;
  };
  using Clock = std::chrono::steady_clock;

  void run();
  void load();
  bool work(std::unique_lock<std::mutex>& lock);  // false: there is none
  void check(std::unique_lock<std::mutex>& lock);
  void make(std::unique_lock<std::mutex>& lock);
  // Without mu_
  bool has_all(const WholeFile& file);
  int write(const WholeFile& file);
  bool read_slice(const WholeFile& file, uint32_t slice);
  bool goes_on() const noexcept { return !stopping_.load(std::memory_order_relaxed); }
  // LOCKED
  bool is_copyable(const WholeFile& file) const noexcept;
  void ask(const WholeFile& file);
  bool make_room(const WholeFile& file);
  void forget(std::unordered_map<uint64_t, Copy>::iterator copy);
  void want(const WholeFile& file);

  const CopyFiles files_;
  const uint64_t bytes_max_;
  Store& store_;

  std::mutex mu_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Copy> copies_;  // guarded by mu_, by inode
  std::unordered_map<uint64_t, Asked> asked_;  // guarded by mu_: of which there is none, by inode
  std::deque<WholeFile> unchecked_;            // guarded by mu_
  std::deque<WholeFile> wanted_;               // guarded by mu_
  std::vector<WholeFile> doomed_;              // guarded by mu_: whose files are to go
  uint64_t bytes_ = 0;                         // guarded by mu_: of copies_
  uint64_t clock_ = 0;                         // guarded by mu_
  bool loaded_ = false;                        // guarded by mu_
  bool at_work_ = false;                       // guarded by mu_
  Clock::time_point rests_until_{};            // guarded by mu_
  uint64_t made_ = 0, evicted_ = 0, refused_ = 0, corrupt_ = 0, faults_ = 0;  // guarded by mu_
  std::atomic<bool> stopping_ = false;
  SlicePages pages_;  // of the thread
  std::thread thread_;
};

}  // namespace braidfs::cache
