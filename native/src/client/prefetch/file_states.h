// What a policy knows of each file that is being read. A file's state is forgotten when nobody has
// read the file for a while.
//
// Invariant: there are at most kFilesMax files. Threads: any() ANY THREAD; the rest as policy.h
// says.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "client/prefetch/extents.h"

namespace braidfs::client::prefetch {

template <typename State>
class FileStates {
 public:
  static constexpr size_t kFilesMax = 1024;
  static constexpr std::chrono::seconds kKeptFor{10};
  // A full table looks for old files at most this often.
  static constexpr std::chrono::milliseconds kLookEvery{100};

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  bool has(uint64_t ino) const { return files_.contains(ino); }
  State* find(uint64_t ino, Clock::time_point now) {
    const auto file = files_.find(ino);
    if (file == files_.end()) return nullptr;
    file->second.used = now;
    return &file->second.state;
  }
  // Adds the file if it is not there yet. nullptr: there is no room.
  State* find_or_add(uint64_t ino, Clock::time_point now) {
    if (State* const state = find(ino, now)) return state;
    if (files_.size() >= kFilesMax && !make_room(now)) return nullptr;
    File& file = files_[ino];
    file.used = now;
    count();
    return &file.state;
  }
  void drop(uint64_t ino) {
    files_.erase(ino);
    count();
  }
  // Forgets files that nobody has read for kKeptFor. True: some files are left.
  bool expire(Clock::time_point now) {
    std::erase_if(files_, [&](const auto& file) { return now - file.second.used >= kKeptFor; });
    count();
    return any();
  }

 private:
  struct File {
    State state{};
    Clock::time_point used{};
  };

  bool make_room(Clock::time_point now) {
    if (now - looked_ < kLookEvery) return false;
    looked_ = now;
    expire(now);
    return files_.size() < kFilesMax;
  }
  void count() noexcept { count_.store(files_.size(), std::memory_order_relaxed); }

  std::unordered_map<uint64_t, File> files_{};
  std::atomic<size_t> count_{0};  // the size of files_
  Clock::time_point looked_{};
};

}  // namespace braidfs::client::prefetch
