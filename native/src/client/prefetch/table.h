// The table of what was fetched into client memory before anybody asked for it: one table for all
// policies.
//
// An entry is an extent of one file, named by inode, offset and stamp (Inode::stamp). It is under
// way from begin() until fetched() or missed(). Then it has its bytes, which are given to READs,
// each byte once. Entries of one file do not overlap. An entry is dropped:
// - when all of its bytes were given;
// - with the READ of the file's end, if it is the whole file;
// - when its lifetime is over;
// - when a READ finds that the file has another version;
// - when its policy asks for that, or the machine's memory is short.
// The last few entries of a file of which little is left stay, since the next READ may begin in one
// of them.
//
// Invariant: a caller of read() has seen, under the inode's mutex, that DATA is leased and that the
// stamp is the one that it names; so no READ gets bytes of another version. Budget: limit() bounds
// the bytes of all entries, under way or here, by the sizes of their buffers. Each entry counts for
// one share, which belongs to one policy or to several; the share says how long an entry is kept,
// and how much of the budget its far entries may take. Threads: none of its own, guarded by the
// Prefetcher's mutex; ANY THREAD may read the counters, any() and the limit.
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

// The entries that one policy, or several policies together, have in the table.
class Share {
 public:
  struct Terms {
    std::string_view name;       // counters: NAME_reads, NAME_unused, NAME_missed
    Clock::duration lifetime{};  // how long an entry stays that nobody reads
    uint32_t far_eighths = 8;    // eighths of the budget for all far entries
  };

  explicit Share(const Terms& terms) : terms_(terms) {}

  const Terms& terms() const noexcept { return terms_; }
  // Whether it has an entry. ANY THREAD.
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
  std::list<Age> ages_{};            // of entries that have bytes, oldest first
  std::atomic<uint64_t> reads_{0};   // READs that its entries answered
  std::atomic<uint64_t> unused_{0};  // entries of which nobody read all
  std::atomic<uint64_t> missed_{0};  // entries that could not be fetched
};

class Table {
 public:
  // A rest is an entry of which at most so many bytes are not given.
  static constexpr uint32_t kRestMax = 64u << 10;
  static constexpr size_t kRestsMax = 16;  // rests of a file that are kept

  // Shares are made before the first request, and live as long as the table.
  Share& share(const Share::Terms& terms) { return shares_.emplace_back(terms); }

  // Sets the budget; 0, the initial value: nothing is begun. ANY THREAD.
  void limit(uint64_t bytes_max) noexcept { bytes_max_ = bytes_max; }
  uint64_t limit() const noexcept { return bytes_max_; }
  uint64_t bytes() const noexcept { return bytes_; }  // that count against the budget
  size_t under_way() const noexcept;
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

  // Where the first entry that ends behind that offset begins and ends.
  struct Cover {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::optional<Cover> next(uint64_t ino, uint64_t offset) const;
  bool has(uint64_t ino) const { return files_.contains(ino); }
  bool is_under_way(uint64_t ino) const;  // the entry at the file's beginning

  // Begins what is missing between `begin` and `end`: it is under way from now on, and appended to
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
  // Begins a whole file of at most that size, as a far entry that counts as `reserve` bytes until
  // its size is known. False: there is no room.
  bool begin_file(Share& share, uint64_t ino, uint32_t size_max, uint32_t reserve,
                  Clock::time_point now);

  // Gives the bytes of an extent to a READ. kYes: `parts` are the bytes. kWait: `reader` waits for
  // entries under way. If some of the extent is here, the missing part is begun, unless `missing`
  // is nullptr.
  Found read(const CachedExtent& extent, Parts& parts, const Waiter& reader, Extents* missing,
             Clock::time_point now);
  // The entry at the extent's offset, which was under way, gets these bytes. Returns who waited for
  // it.
  Waiters fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now);
  Waiters missed(uint64_t ino, uint64_t offset);

  // drop() drops the entries of one share and file, and let_go() all entries, except those that are
  // under way.
  void drop(const Share& share, uint64_t ino);
  void let_go();
  // Drops entries that are too old. True: some entries are left.
  bool expire(Clock::time_point now);

 private:
  struct Entry {
    Share* share = nullptr;
    uint64_t stamp = 0;
    uint64_t file_size = 0;
    uint32_t length = 0;
    uint32_t charge = 0;  // bytes that count against the budget
    uint32_t given = 0;
    bool under_way = true;
    std::list<Share::Age>::iterator age{};  // valid while it has bytes
    std::shared_ptr<Buffer> bytes{};
    Waiters waiters{};
    bool is_rest() const noexcept { return given + kRestMax >= length; }
    bool is_of(const CachedExtent& extent) const noexcept {
      return stamp == extent.stamp && file_size == extent.file_size;
    }
  };
  using Entries = std::map<uint64_t, Entry>;  // by offset; they do not overlap
  struct File {
    Entries entries{};
    std::deque<uint64_t> rests{};  // offsets of rests, oldest first; some may be gone
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
  void drop_idle(File& file, const Share* share = nullptr);  // nullptr: of all shares
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
  Files files_{};  // the files that have entries
};

}  // namespace braidfs::client::prefetch
