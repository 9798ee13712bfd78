// Files on which this client holds META and DATA leases by their directory's grant
// (docs/decisions/0022-directory-grants.md): the packed records that lanes need to answer LOOKUP,
// GETATTR and OPEN for reading. Python has no entries for these files.
//
// Entries are valid as long as the session's leases last. A lane opens a file under its group's
// mutex (find()), so that after drop() nobody opens it from its entry here. Whoever puts entries
// bounds them: see fsclient/fs/ahead.py. ANY THREAD; one mutex for each group of inodes.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "names/attribute_record.h"

namespace braidfs::names {

class ChildTable {
 public:
  using Clock = braidfs::Clock;

  struct Child {
    uint64_t directory = 0;
    record::Record attributes{};
    std::string layout;
    std::string capability;
    bool opened = false;  // by lanes since it was put: the kernel's pages are of this version
  };

  // Called with each renewal: the session's leases last until then.
  void believe(Clock::time_point until) noexcept { until_.store(until.time_since_epoch().count()); }

  // Adds or replaces a file. False: `attributes` is no record.
  bool put(uint64_t directory, std::span<const std::byte> attributes,
           std::span<const std::byte> layout, std::span<const std::byte> capability);

  // Calls use(child), with the child's group locked, if there is a valid entry; returns its result.
  // Use: bool(Child&).
  template <typename Use>
  bool find(uint64_t ino, Clock::time_point now, Use use) {
    if (count_.load(std::memory_order_relaxed) == 0 || now.time_since_epoch().count() >= until_)
      return false;
    Group& in = group(ino);
    const std::scoped_lock lock(in.mu);
    const auto found = in.children.find(ino);
    return found != in.children.end() && use(found->second);
  }

  // Removes the entry unless keep(is there an entry), called with the group locked. False: it was
  // kept.
  template <typename Keep>
  bool drop_unless(uint64_t ino, Keep keep) {
    Group& in = group(ino);
    const std::scoped_lock lock(in.mu);
    if (keep(in.children.contains(ino))) return false;
    erase(in, ino);
    return true;
  }
  // True when there was one.
  bool drop(uint64_t ino) {
    Group& in = group(ino);
    const std::scoped_lock lock(in.mu);
    return erase(in, ino);
  }
  // Called from find() at an open. True when lanes have opened the file before, since it was put.
  bool mark_opened(Child& child) noexcept {
    if (child.opened) return true;
    used_.fetch_add(1, std::memory_order_relaxed);
    child.opened = true;
    return false;
  }
  // Whether the entry is older than this change_version.
  bool is_older(uint64_t ino, uint64_t change_version);
  // The inodes of one directory, or of all for 0. Looks at every entry.
  std::vector<uint64_t> of(uint64_t directory);

  size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // The memory of all entries, in units of an entry without inline bytes: inline bytes make an
  // entry count as more than one.
  size_t weight() const noexcept {
    return count() + bytes_.load(std::memory_order_relaxed) / kChildBytes;
  }
  uint64_t used() const noexcept {
    return used_.load(std::memory_order_relaxed);
  }  // opened, each once
  uint64_t unused() const noexcept {
    return unused_.load(std::memory_order_relaxed);
  }  // dropped before

 private:
  struct alignas(64) Group {
    std::mutex mu;
    std::unordered_map<uint64_t, Child> children;  // guarded by mu
  };
  static constexpr size_t kGroupCount = 64;

  Group& group(uint64_t ino) noexcept { return groups_[ino % kGroupCount]; }
  bool erase(Group& in, uint64_t ino);
  static constexpr size_t kChildBytes = 450;  // of one entry, about
  static size_t bytes_of(const Child& child) noexcept { return child.layout.size(); }

  std::array<Group, kGroupCount> groups_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> bytes_{0};  // of layouts, with the inline bytes behind them
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> unused_{0};
  std::atomic<Clock::rep> until_{0};
};

}  // namespace braidfs::names
