// What was fetched into client memory before anybody asked for it: one table for all policies.
//
// An entry is some bytes of one file, named by inode, offset and stamp (Inode::stamp). It is under
// way from begin() until fetched() or missed(); then it has its bytes, which are given to READs,
// each byte once. Entries of one file do not overlap. An entry goes when all of it was given; with
// the READ of the file's end if it is the whole file; when its lifetime is over; when a READ finds
// that the file has another version; when its policy or the machine's memory says so. Of entries of
// which little is left the last few of a file stay, since the next READ may begin in that.
//
// Coherence: a caller of read() saw, under the inode's mutex, that DATA is leased and that the
// stamp is the one that it names. Budget: limit() bounds the bytes of all entries, under way or
// here, by the sizes of their buffers; each entry counts for a share (a policy's, or that of
// several policies), which says how long it is kept and how much of the budget its far entries may
// take. Threads: none of its own, guarded by the Prefetcher's mutex; the counters, any() and the
// limit may be read by ANY THREAD.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/cached_extent.h"
#include "client/memory.h"
#include "client/prefetch/extents.h"

namespace braidfs::client::prefetch {

// The entries that one policy, or several, have in the table.
class Share {
 public:
  struct Terms {
    std::string_view name;       // counters: NAME_reads, NAME_unused, NAME_missed
    Clock::duration lifetime{};  // of an entry whose bytes nobody reads
    uint32_t far_eighths = 8;    // of the budget, for all far entries together
  };

  explicit Share(const Terms& terms) : terms_(terms) {}

  const Terms& terms() const noexcept { return terms_; }
  // ANY THREAD. Whether it has an entry.
  bool any() const noexcept { return entries_.load(std::memory_order_relaxed) != 0; }
  uint64_t bytes() const noexcept { return bytes_; }
  size_t under_way() const noexcept { return under_way_; }

 private:
  friend class Table;
  struct Age {
    uint64_t ino = 0;
    uint64_t offset = 0;
    Clock::time_point since{};
  };

  const Terms terms_;
  std::atomic<size_t> entries_{0};
  uint64_t bytes_ = 0;
  size_t under_way_ = 0;
  std::list<Age> ages_{};            // of entries that are here, oldest first
  std::atomic<uint64_t> reads_{0};   // that were answered from here
  std::atomic<uint64_t> unused_{0};  // entries of which nobody read all
  std::atomic<uint64_t> missed_{0};  // entries that could not be fetched
};

class Table {
 public:
  static constexpr uint32_t kRestMax = 64u << 10;  // of an entry that is nearly given
  static constexpr size_t kRestsMax = 16;          // such entries of a file

  // Shares are made before the first request, and live as long as the table.
  Share& share(const Share::Terms& terms) { return shares_.emplace_back(terms); }

  // ANY THREAD. 0, as in the beginning: nothing is begun.
  void limit(uint64_t bytes_max) noexcept { bytes_max_ = bytes_max; }
  uint64_t limit() const noexcept { return bytes_max_; }
  uint64_t bytes() const noexcept { return bytes_; }  // of the budget
  size_t under_way() const noexcept;
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

  // Where the first entry that ends behind that offset begins and ends.
  struct Cover {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::optional<Cover> next(uint64_t ino, uint64_t offset) const;
  bool has(uint64_t ino) const { return files_.contains(ino); }
  bool is_under_way(uint64_t ino) const;  // from the file's beginning on

  // What is missing between `begin` and `end` is under way from now on, and is appended to
  // `extents`. `given`: so many bytes of it will not be asked for. False: there is no room for all
  // of it.
  struct Want {
    uint64_t ino = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    Priority priority = Priority::kNear;
    uint32_t given = 0;
  };
  bool begin(Share& share, const Want& want, Extents& extents, Clock::time_point now);
  // A whole file of at most that size, far; `reserve` counts for it until its size is known. False:
  // there is no room.
  bool begin_file(Share& share, uint64_t ino, uint32_t size_max, uint32_t reserve,
                  Clock::time_point now);

  // kYes: `parts` are the bytes. kWait: `reader` is among the waiters of what is under way. What is
  // missing where some of the extent is here is begun, unless `missing` is nullptr.
  Found read(const CachedExtent& extent, Parts& parts, const Waiter& reader, Extents* missing,
             Clock::time_point now);
  // The entry at the extent's offset, which was under way, has these bytes. Returns who waited.
  Waiters fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now);
  Waiters missed(uint64_t ino, uint64_t offset);

  // Of one share and file, of all files: what is here goes; what is under way does not.
  void drop(const Share& share, uint64_t ino);
  void let_go();
  // What is too old goes. True: some entries are left.
  bool expire(Clock::time_point now);

 private:
  struct Entry {
    Share* share = nullptr;
    uint64_t stamp = 0;
    uint64_t file_size = 0;
    uint32_t length = 0;
    uint32_t charge = 0;  // of the budget
    uint32_t given = 0;
    bool under_way = true;
    std::list<Share::Age>::iterator age{};  // while it is here
    std::shared_ptr<Buffer> bytes{};
    Waiters waiters{};
    bool is_rest() const noexcept { return given + kRestMax >= length; }
    bool is_of(const CachedExtent& extent) const noexcept {
      return stamp == extent.stamp && file_size == extent.file_size;
    }
  };
  using Entries = std::map<uint64_t, Entry>;  // by offset; none over another
  struct File {
    Entries entries{};
    std::deque<uint64_t> rests{};  // offsets of entries, oldest first; some may be gone
  };
  using Files = std::unordered_map<uint64_t, File>;

  static Entries::const_iterator over(const File& file, uint64_t offset);
  static Entries::iterator over(File& file, uint64_t offset);
  bool has_room(const Share& share, uint32_t charge, Priority priority) const noexcept;
  void make_room(uint64_t bytes, Clock::time_point now);
  bool add(Share& share, File& file, uint64_t offset, Entry entry, Priority priority);
  bool begin_in(Share& share, File& file, const Want& want, Extents& extents);
  void recharge(Entry& entry, uint32_t bytes) noexcept;
  Entries::iterator erase(File& file, Entries::iterator entry);
  Entries::iterator drop(File& file, Entries::iterator entry);
  void drop_idle(File& file, const Share* share = nullptr);  // nullptr: of all
  void drop_other_versions(File& file, const CachedExtent& extent);
  static Found cover(File& file, const CachedExtent& extent, const Waiter& reader);
  void give(File& file, const CachedExtent& extent, Parts* parts);
  void give_of(File& file, Entries::iterator& entry, const CachedExtent& extent, Parts* parts);
  void trim_rests(File& file);
  void forget_if_empty(Files::iterator file);
  Entry* under_way_at(const CachedExtent& extent);

  std::atomic<uint64_t> bytes_max_{0};
  uint64_t bytes_ = 0;
  std::deque<Share> shares_{};
  Files files_{};  // those that have entries
};

}  // namespace braidfs::client::prefetch
