// Directories of which every name is known here, so that LOOKUP of a name that is not among them is
// answered ENOENT without an upcall: each file of an untar or a burst of checkpoints is looked up
// once before it is created.
//
// Python says when a directory is complete and for how long that may be believed; a name is added
// before the request that may make it leaves. Names are never taken out, so the set is a superset
// of what exists: a name in it is asked for, a name not in it does not exist. Bounded: a directory
// with too many names, or one too many directories, is forgotten, never answered wrongly.
// ANY THREAD, guarded by mu_.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace braidfs::fuse {

class CompleteTable {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kDirectoriesMax = 4096;
  static constexpr size_t kNamesMax = 1u << 20;  // of all directories together

  // ino is new and empty, and may be believed complete until `until`.
  void put(uint64_t ino, Clock::time_point until);
  // It is complete still; nothing happens when it was forgotten here.
  void extend(uint64_t ino, Clock::time_point until);
  void add(uint64_t ino, std::string_view name);
  void drop(uint64_t ino);
  void clear();

  bool is_absent(uint64_t ino, std::string_view name, Clock::time_point now);

 private:
  struct Directory {
    Clock::time_point until;
    std::unordered_set<uint64_t> names;  // XXH3 of each
  };

  std::mutex mu_;
  std::unordered_map<uint64_t, Directory> directories_;
  size_t name_count_ = 0;
};

}  // namespace braidfs::fuse
