// The write-ahead log of a target: segments wal/NNNNNNNN of numbered entries under checksums.
//
// append() is a write(2) under one mutex. sync() is a group commit: one caller calls fdatasync, the
// others wait for it. A new segment begins only in rotate() (at a checkpoint), so the whole log is
// at most a little larger than StoreConfig::log_bytes_max. After a failed fdatasync the log refuses
// everything. Space is allocated ahead of the end, and appended bytes start on their way to the
// device early (write_out(), called by the store's background thread), so that a sync has little
// left to do.
//
// Beside each segment lies wal/NNNNNNNN.synced: what every completed sync promised (layout.h,
// Promise).
//
// Torn or damaged: missing entries were durable if a later entry says so, if a sync promised it,
// or, as long as the host lives, if anything valid follows. Then the log is damaged at that place:
// what follows is still read, and recovery.cpp finds out from the promises which objects lost
// entries. Otherwise the rest is the torn end of a power cut and is removed. The target is refused
// only when the promises about a damaged part are missing, too.
//
// Threads: ANY THREAD, guarded by mu_. Not here: what entries mean (recovery.cpp), when to rotate
// (checkpoint.cpp). log_load.cpp has the reading at start.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "store/layout.h"
#include "store/promise_file.h"

namespace braidfs::store {

struct LogScan {
  Status status = Status::kOk;  // kCorrupt: the log is damaged, and nothing says which objects are
  std::string message;  // for people: what is damaged; may be set when the status is kOk, too
  uint64_t entries = 0;
  bool lossy = false;  // true: something that was answered is missing, or may be
};

// A place where entries are missing, or where an entry is not whole.
struct LogGap {
  // Entries [first, end) are missing. When first == end, only the REDO bytes of entry `first` are
  // damaged.
  uint64_t first = 0;
  uint64_t end = 0;
  size_t segment = 0;  // index of the segment of the entry that follows the gap
  size_t entry = 0;    // index of that entry
};

class Log {
 public:
  Log(Device& device, const Uuid& uuid) noexcept : device_(device), uuid_(uuid) {}

  Status create();  // makes an empty log in the existing directory
  // Reads every segment. Afterwards the next sequence and the torn end are known. same_boot: the
  // host has not restarted, so all entries that were ever appended must be there.
  LogScan load(bool same_boot);
  // Called instead of load() for a target that was stopped cleanly and whose log cannot be read:
  // nothing in the log is needed any more.
  void load_nothing(uint64_t next_sequence);
  std::span<const Promise> promises() const noexcept { return loaded_promises_; }
  // true: a checkpoint did not finish
  bool was_rotating() const noexcept { return loaded_segments_ > 1; }
  void visit(const std::function<void(const EntryView&)>& visit) const;
  // Removes the torn end, begins a new segment, and frees what load() read.
  Status begin_after_load();

  // Appends an entry; sets the header's sequence, durable_sequence and distance. `bytes` are the
  // blocks of the REDO runs. `sequence`: in, that of the object's last entry (0: none); out, that
  // of the new entry.
  Status append(EntryHeader header, std::span<const EntryRun> runs, std::span<const uint64_t> sums,
                std::span<const iovec> bytes, uint64_t& sequence);
  Status sync(uint64_t sequence);  // makes entries up to sequence durable
  bool has_much_to_write_out() const noexcept {
    return behind_.load(std::memory_order_relaxed) >= kWriteOutBytes;
  }
  Status write_out();  // begins only; may block where the device's queue is full

  Status rotate(uint64_t& number);      // new entries go to segment `number`
  Status drop_before(uint64_t number);  // drops the segments that a checkpoint made unnecessary
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  uint64_t last_sequence() const;
  uint64_t newest_start() const;  // first entry of the newest segment
  // The first entry that load() found; 0: not known.
  uint64_t oldest_start() const noexcept { return oldest_start_; }

 private:
  static constexpr uint64_t kAllocateBytes = 4 << 20;
  static constexpr uint64_t kWriteOutBytes = 1 << 20;

  struct Segment {
    uint64_t number = 0;
    uint64_t first_sequence = 0;
    uint64_t valid_length = 0;  // bytes of the header and of valid entries
    uint64_t allocated = 0;     // bytes of space that were asked for
    uint64_t written_out = 0;   // bytes that are on their way to the device, or there
    uint64_t key = 0;
    std::shared_ptr<File> file{};
    std::shared_ptr<PromiseFile> promises{};
    // Used only between load() and begin_after_load():
    std::vector<std::byte> content{};
    std::vector<size_t> entries{};  // where valid entries begin
    bool is_old = false;
  };
  struct Scan;  // in log_load.cpp

  int create_segment(uint64_t number, uint64_t first_sequence, Segment& segment);
  int read_file(const std::string& path, std::vector<std::byte>& content,
                std::shared_ptr<File>& file);
  std::vector<uint64_t> list(std::string_view suffix);
  int read_promises(Scan& scan);
  void scan_segment(size_t number, Scan& scan);
  bool scan_header(size_t number, Scan& scan);
  void accept(size_t number, size_t at, const EntryView& view, Scan& scan);
  void judge(bool same_boot, Scan& scan);
  void cut_at(const LogGap& gap, Scan& scan);
  void report_damage(const LogGap& gap, Scan& scan);
  Status write_at_end(std::span<const std::byte> encoded, std::span<const iovec> bytes);
  void allocate_ahead(Segment& segment, std::span<const iovec> parts);
  int trim_torn_end();
  static std::string path_of(uint64_t number);
  static std::string promises_path_of(uint64_t number);

  Device& device_;
  const Uuid uuid_;
  mutable std::mutex mu_;
  std::condition_variable synced_;
  std::vector<Segment> segments_;  // oldest first; the last one takes new entries
  // Earlier segments whose end is not durable yet.
  std::vector<std::shared_ptr<File>> unsynced_;
  size_t good_segments_ = 0;  // set by load(): segments that hold valid entries
  size_t loaded_segments_ = 0;
  uint64_t oldest_start_ = 0;
  std::vector<uint64_t> stale_promises_;  // set by load(): promise files of segments that are gone
  std::vector<Promise> loaded_promises_;
  // Promises about entries that are not durable yet, in order.
  std::vector<Promise> promised_;
  uint64_t next_sequence_ = 1;
  uint64_t durable_sequence_ = 0;
  bool syncing_ = false;
  bool failed_ = false;
  std::atomic<uint64_t> bytes_{0};   // of the entries in all segments
  std::atomic<uint64_t> behind_{0};  // bytes of the last segment that were not written out yet
  std::vector<std::byte> scratch_;

  void count_bytes();
};

}  // namespace braidfs::store
