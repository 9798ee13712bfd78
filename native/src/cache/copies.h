// Copies of whole files, each a file of its own that the kernel can read without help
// (docs/decisions/0041-passthrough.md).
//
// A copy is made from the slices of a store that has all of them, and checked again after each
// start of this program, by a thread with low priority. Nobody waits for it.
//
// Space: bytes_max, for the files and their sums. A copy makes room for another one if it is not
// open and it was not opened since that other file was opened twice. So an epoch over more data
// than fits keeps what is there, and another data set replaces it. There is one copy for each
// inode. Errors of the disk (a full one as well) stop the making of copies for a while; they cost
// copies and nothing else.
//
// Threads: ANY THREAD, guarded by mu_. The files are used by the thread only, except those that
// open() opens.
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
#include "core/clock.h"

namespace braidfs::cache {

class Copies {
 public:
  // The open of a smaller copy costs more than it saves.
  static constexpr uint64_t kFileBytesMin = 4u << 20;
  static constexpr size_t kWantedMax = 256;
  static constexpr size_t kOpenTimesMax = 4096;
  static constexpr auto kFaultRest = std::chrono::seconds(60);

  Copies(std::string directory, uint64_t bytes_max, const Cluster& cluster, Store& store);
  ~Copies() { stop(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Called once; before that there is no copy, and none is made.
  void start();
  void stop();

  // The open copy, if there is one that was checked; otherwise a copy is wanted. The caller calls
  // closed() as often as it got one.
  net::UniqueFd open(const WholeFile& file);
  void closed(const WholeFile& file);
  // Waits until every wanted copy is made, or is given up. For tests.
  void wait_idle();

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  struct Copy {
    WholeFile file;
    bool is_checked = false;
    uint32_t users = 0;
    uint64_t opened = 0;  // time of the last open, by clock_
  };
  struct OpenTimes {
    uint64_t last = 0;
    uint64_t before = 0;
  };
  using Clock = braidfs::Clock;

  void run();
  void load();
  bool run_next(std::unique_lock<std::mutex>& lock);  // false: there is nothing to do
  void check(std::unique_lock<std::mutex>& lock);
  void make(std::unique_lock<std::mutex>& lock);
  // ---- without mu_ ----
  bool has_all(const WholeFile& file);
  int write(const WholeFile& file);
  bool read_slice(const WholeFile& file, uint32_t slice);
  bool is_running() const noexcept { return !stopping_.load(std::memory_order_relaxed); }
  // ---- LOCKED ----
  bool is_copyable(const WholeFile& file) const noexcept;
  void note_open(const WholeFile& file);
  bool make_room(const WholeFile& file);
  void forget(std::unordered_map<uint64_t, Copy>::iterator copy);
  void want(const WholeFile& file);

  const CopyFiles files_;
  const uint64_t bytes_max_;
  Store& store_;

  std::mutex mu_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Copy> copies_;  // guarded by mu_; by inode
  // Guarded by mu_: opens of files without a copy, by inode.
  std::unordered_map<uint64_t, OpenTimes> opened_without_copy_;
  std::deque<WholeFile> unchecked_;   // guarded by mu_
  std::deque<WholeFile> wanted_;      // guarded by mu_
  std::vector<WholeFile> to_remove_;  // guarded by mu_; the files of these are to be removed
  uint64_t bytes_ = 0;                // guarded by mu_; of copies_
  uint64_t clock_ = 0;                // guarded by mu_
  bool loaded_ = false;               // guarded by mu_
  bool at_work_ = false;              // guarded by mu_
  Clock::time_point rests_until_{};   // guarded by mu_
  uint64_t made_ = 0, evicted_ = 0, refused_ = 0, corrupt_ = 0, faults_ = 0;  // guarded by mu_
  std::atomic<bool> stopping_ = false;
  SlicePages pages_;  // used by the thread only
  std::thread thread_;
};

}  // namespace braidfs::cache
