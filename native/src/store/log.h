// The write-ahead log of a target: segments wal/NNNNNNNN of sealed, numbered entries.
//
// append() is a write(2) under one mutex; sync() is group commit: one caller fdatasyncs, the others
// wait for it. A segment is replaced only by rotate() (at a checkpoint), so the whole log is at
// most StoreConfig::log_bytes_max and a little. After a failed fdatasync the log refuses
// everything. Space is allocated ahead of the end, and what was appended begins its way to the
// device early (write_out, by the store's background thread), so that a sync has little left to do.
//
// Beside each segment lies wal/NNNNNNNN.synced: what every completed sync promised (layout.h,
// Promise).
//
// Torn or damaged: where entries are missing, they were durable if any later entry says so, if a
// sync promised it, or, as long as the host lives, if anything valid follows. Then the log is
// damaged there: what follows is read all the same, and recovery.cpp finds out by the promises
// whose entries are missing. Otherwise the rest is the torn end of a power cut and is cut off. The
// target is refused only when the promises about a damaged part are missing, too. ANY THREAD. Not
// here: what entries mean (recovery.cpp), when to rotate (checkpoint.cpp); log_load.cpp has what is
// read at the start.
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
  Status status = Status::kOk;  // kCorrupt: damaged, and nobody can tell which objects are
  std::string message;          // also for people when the status is kOk: what is damaged
  uint64_t entries = 0;
  bool lossy = false;  // something is missing that was answered, or may have been
};

// Where entries are missing, or one that is not whole.
struct LogGap {
  uint64_t first =
      0;  // missing: [first, end); first == end: REDO bytes of entry `first` are damaged
  uint64_t end = 0;
  size_t segment = 0;  // of the entry that follows it
  size_t entry = 0;
};

class Log {
 public:
  Log(Device& device, const Uuid& uuid) noexcept : device_(device), uuid_(uuid) {}

  Status create();  // an empty log; the directory exists
  // Reads every segment; next_sequence and the torn end are known afterwards. same_boot: all that
  // was ever appended is to be there.
  LogScan load(bool same_boot);
  // Instead, of a target that was stopped: nothing in the log is needed any more, and it cannot be
  // read.
  void load_nothing(uint64_t next_sequence);
  std::span<const Promise> promises() const noexcept { return loaded_promises_; }
  bool was_rotating() const noexcept { return loaded_segments_ > 1; }  // a checkpoint did not end
  void visit(const std::function<void(const EntryView&)>& visit) const;
  // Cuts the torn end off, begins a new segment and forgets what load() read.
  Status begin_after_load();

  // header.sequence, durable_sequence and distance are filled in. bytes: the blocks of REDO runs.
  // sequence: in, of the object's last entry (0: none); out, of this one.
  Status append(EntryHeader header, std::span<const EntryRun> runs, std::span<const uint64_t> sums,
                std::span<const iovec> bytes, uint64_t& sequence);
  Status sync(uint64_t sequence);  // entries up to sequence are durable
  bool has_much_to_write_out() const noexcept {
    return behind_.load(std::memory_order_relaxed) >= kWriteOutBytes;
  }
  Status write_out();  // begins; blocking where the device's queue is full

  Status rotate(uint64_t& number);      // new entries go to segment `number`
  Status drop_before(uint64_t number);  // segments that a checkpoint made superfluous
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  uint64_t last_sequence() const;
  uint64_t newest_start() const;  // the first entry of the newest segment
  uint64_t oldest_start() const noexcept {
    return oldest_start_;
  }  // of what load() found; 0: not known

 private:
  static constexpr uint64_t kAllocateBytes = 4 << 20;
  static constexpr uint64_t kWriteOutBytes = 1 << 20;

  struct Segment {
    uint64_t number = 0;
    uint64_t first_sequence = 0;
    uint64_t valid_length = 0;  // bytes of header and valid entries
    uint64_t allocated = 0;     // bytes of space asked for
    uint64_t written_out = 0;   // bytes that are on their way to the device, or there
    uint64_t key = 0;
    std::shared_ptr<File> file{};
    std::shared_ptr<PromiseFile> promises{};
    // Only between load and begin_after_load:
    std::vector<std::byte> content{};
    std::vector<size_t> entries{};  // where valid ones begin
    bool is_old = false;
  };
  struct Scan;  // log_load.cpp

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
  void refuse(const LogGap& gap, Scan& scan);
  Status write_at_end(std::span<const std::byte> encoded, std::span<const iovec> bytes);
  void allocate_ahead(Segment& segment, std::span<const iovec> parts);
  int trim_torn_end();
  static std::string path_of(uint64_t number);
  static std::string promises_path_of(uint64_t number);

  Device& device_;
  const Uuid uuid_;
  mutable std::mutex mu_;
  std::condition_variable synced_;
  std::vector<Segment> segments_;                // oldest first; the last one takes entries
  std::vector<std::shared_ptr<File>> unsynced_;  // earlier segments whose end is not yet durable
  size_t good_segments_ = 0;                     // of load(): segments that hold valid entries
  size_t loaded_segments_ = 0;
  uint64_t oldest_start_ = 0;
  std::vector<uint64_t> stale_promises_;  // of load(): files of segments that are gone
  std::vector<Promise> loaded_promises_;
  std::vector<Promise> promised_;  // of entries that are not yet durable; in order
  uint64_t next_sequence_ = 1;
  uint64_t durable_sequence_ = 0;
  bool syncing_ = false;
  bool failed_ = false;
  std::atomic<uint64_t> bytes_{0};   // of entries in all segments
  std::atomic<uint64_t> behind_{0};  // bytes of the last segment that are not yet written out
  std::vector<std::byte> scratch_;

  void count_bytes();
};

}  // namespace braidfs::store
