// Files that a program said it is going to read, in that order
// (docs/decisions/0038-announced-reads.md): small ones are fetched before they are asked for, and
// their READs answered from memory.
//
// What is fetched is named by inode and stamp (Inode::stamp), like what the local cache has: it is
// given only to a READ that saw, under the inode's mutex, that DATA is leased and the stamp is this
// one. It goes with the READ of its end, when the file is closed without one, when files far behind
// it in the order have been read, and after kKeptFor. So many files are on their way at once, and
// so many bytes are kept at most; then fetching waits for READs. Threads: ANY THREAD, guarded by
// mu_. Not here: the fetching (early_fetch.h), whose files they are (fsclient/fs/announced.py).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/local_cache.h"
#include "client/memory.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Operation;

class Announced {
 public:
  using Clock = net::Clock;
  using Waiters = std::vector<std::shared_ptr<Operation>>;
  static constexpr uint32_t kFileMax = 1u << 20;  // larger files are the kernel's read-ahead's
  static constexpr size_t kWantedMax = 1u << 20;
  static constexpr size_t kUnderWayMax = 64;
  static constexpr size_t kBatch = 16;  // that begin together, so that their requests do, too
  static constexpr uint64_t kReserve = 256u << 10;  // for a file that is under way
  static constexpr size_t kBehindMax = 1024;        // in the order
  static constexpr std::chrono::seconds kKeptFor{60};

  // Of what is kept; 0, as in the beginning: nothing is fetched.
  void limit(uint64_t bytes_max) noexcept { bytes_max_ = bytes_max; }
  // Nothing more is begun, or again.
  void pause(bool paused) noexcept { paused_ = paused; }
  size_t under_way() const {
    const std::scoped_lock lock(mu_);
    return under_way_;
  }

  // Behind what is wanted already, or in its place. Returns how many there was room for.
  size_t want(std::span<const uint64_t> inos, bool replaces);
  // What is to be fetched now, at most kBatch: each is under way then, until fetched() or missed().
  std::vector<uint64_t> take(Clock::time_point now);
  // These bytes are all of it. Whoever waits looks again.
  Waiters fetched(uint64_t ino, uint64_t stamp, uint32_t size, Buffer bytes);
  Waiters missed(uint64_t ino);

  enum class Found : uint8_t { kNo, kWait, kYes };
  // kYes: `place`, which has room for the extent, has it. kWait: `reader` proceeds when the file
  // has come.
  Found read(const CachedExtent& extent, Buffer& place, const std::shared_ptr<Operation>& reader);
  // It was closed: its bytes were in the kernel, or not wanted.
  void closed(uint64_t ino);
  // True when something is left that has to go some day.
  bool expire(Clock::time_point now);

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // Of all that is not under way, and of what is wanted: READs ask the targets.
  void let_go();
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

 private:
  struct File {
    uint64_t place = 0;  // in the order
    uint64_t stamp = 0;
    Clock::time_point since{};
    uint32_t size = 0;
    bool under_way = true;
    Buffer bytes{};
    Waiters waiters{};
  };
  using Files = std::unordered_map<uint64_t, File>;

  // All LOCKED.
  void drop(Files::iterator file);
  void drop_behind(uint64_t turn);
  template <typename MayGo>
  void drop_first_while(MayGo may_go);
  bool has_room() const noexcept;

  std::atomic<uint64_t> bytes_max_{0};
  std::atomic<bool> paused_{false};
  std::atomic<size_t> count_{0};     // of files_
  std::atomic<uint64_t> reads_{0};   // that were answered from here
  std::atomic<uint64_t> unused_{0};  // files that went unread, or had changed
  std::atomic<uint64_t> missed_{0};  // files that could not be fetched

  mutable std::mutex mu_;
  std::deque<uint64_t> wanted_;
  Files files_;
  std::deque<std::pair<uint64_t, uint64_t>>
      order_;  // place and inode of files_, and of some that went
  uint64_t next_place_ = 0;
  size_t under_way_ = 0;
  uint64_t bytes_ = 0;  // kept, by buffer
};

}  // namespace braidfs::client
