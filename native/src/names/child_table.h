// Files of which this client holds META and DATA by their directory
// (docs/decisions/0022-directory-grants.md): what is needed to answer LOOKUP, GETATTR and OPEN for
// reading of each, as packed records and nothing more. Python knows of none of them.
//
// What is here is believed as long as the session's leases last. Whoever opens a file does it under
// the group's mutex (find()), so that after drop() nobody opens it by what was here.
// Bounded by whoever puts: see fsclient/fs/ahead.py.
// ANY THREAD; one mutex for each group of inodes.
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

#include "names/attribute_record.h"

namespace braidfs::names {

class ChildTable {
 public:
  using Clock = std::chrono::steady_clock;

  struct Child {
    uint64_t directory = 0;
    record::Record attributes{};
    std::string layout;
    std::string capability;
    bool opened = false;  // by lanes, since it is here: the kernel's pages are of this version
  };

  // Leases last until then; called with each renewal.
  void believe(Clock::time_point until) noexcept { until_.store(until.time_since_epoch().count()); }

  // In place of what was known. False: attributes is no record.
  bool put(uint64_t directory, std::span<const std::byte> attributes,
           std::span<const std::byte> layout, std::span<const std::byte> capability);

  // Calls use(child) with its group locked if there is one that may be believed, and returns what
  // it says. Use: bool(Child&).
  template <typename Use>
  bool find(uint64_t ino, Clock::time_point now, Use use) {
    if (count_.load(std::memory_order_relaxed) == 0 || now.time_since_epoch().count() >= until_)
      return false;
    Group& in = group(ino);
    const std::scoped_lock lock(in.mu);
    const auto found = in.children.find(ino);
    return found != in.children.end() && use(found->second);
  }

  // Takes it out unless keep(whether it is here) says so, with its group locked. False: it did.
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
  // For find(): it is open from now on. True when it was before, since it is here.
  bool mark_opened(Child& child) noexcept {
    if (child.opened) return true;
    used_.fetch_add(1, std::memory_order_relaxed);
    child.opened = true;
    return false;
  }
  // What is known of it is from before that change.
  bool is_older(uint64_t ino, uint64_t change_version);
  // Those of one directory; of 0: all. Looks at every one there is.
  std::vector<uint64_t> of(uint64_t directory);

  size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // What they take, in children without bytes of their own: those that lie in their record count as
  // more.
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
  static constexpr size_t kChildBytes = 450;  // of one, about
  static size_t bytes_of(const Child& child) noexcept { return child.layout.size(); }

  std::array<Group, kGroupCount> groups_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> bytes_{0};  // of their layouts, and what lies behind those
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> unused_{0};
  std::atomic<Clock::rep> until_{0};
};

}  // namespace braidfs::names
