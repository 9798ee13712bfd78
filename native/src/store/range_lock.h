// Reader-writer lock on ranges of blocks of one object. First come, first served: a later
// conflicting request never overtakes one that waits, so neither checkpoint nor truncate starves.
//
// Threads: guarded by the object's mutex, which the caller holds in every call.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace braidfs::store {

class RangeLock {
 public:
  using Ticket = uint64_t;  // 0: none

  // 0: it would have to wait.
  Ticket try_lock(uint64_t first, uint64_t end, bool exclusive) {
    const Entry entry{first, end, exclusive, true, next_ticket_};
    if (conflicts(entry, entries_.size())) return 0;
    entries_.push_back(entry);
    return next_ticket_++;
  }

  Ticket lock(std::unique_lock<std::mutex>& guard, uint64_t first, uint64_t end, bool exclusive) {
    const Ticket ticket = next_ticket_++;
    entries_.push_back({first, end, exclusive, false, ticket});
    ++waiting_;
    for (size_t i = index_of(ticket); conflicts(entries_[i], i); i = index_of(ticket)) {
      released_.wait(guard);
    }
    entries_[index_of(ticket)].held = true;
    --waiting_;
    return ticket;
  }

  // Extends a held exclusive range, if nobody else holds or waits for the rest.
  bool try_extend(Ticket ticket, uint64_t first, uint64_t end) {
    for (const Entry& other : entries_) {
      if (other.ticket != ticket && overlap(other, first, end)) return false;
    }
    Entry& entry = entries_[index_of(ticket)];
    if (first < entry.first) entry.first = first;
    if (end > entry.end) entry.end = end;
    return true;
  }

  void unlock(Ticket ticket) {
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(index_of(ticket)));
    if (waiting_ != 0) released_.notify_all();
  }

  bool idle() const noexcept { return entries_.empty(); }

 private:
  struct Entry {
    uint64_t first;
    uint64_t end;
    bool exclusive;
    bool held;
    Ticket ticket;
  };

  static bool overlap(const Entry& entry, uint64_t first, uint64_t end) noexcept {
    return entry.first < end && first < entry.end;
  }
  // Compares with all entries before position `before`, held or waiting.
  bool conflicts(const Entry& entry, size_t before) const noexcept {
    for (size_t i = 0; i < before; ++i) {
      const Entry& other = entries_[i];
      if ((entry.exclusive || other.exclusive) && overlap(other, entry.first, entry.end))
        return true;
    }
    return false;
  }
  size_t index_of(Ticket ticket) const noexcept {
    size_t i = 0;
    while (entries_[i].ticket != ticket) ++i;
    return i;
  }

  std::vector<Entry> entries_;  // in order of arrival
  std::condition_variable released_;
  Ticket next_ticket_ = 1;
  uint32_t waiting_ = 0;
};

}  // namespace braidfs::store
