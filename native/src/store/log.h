// The write-ahead log of a target: segments wal/NNNNNNNN of sealed, numbered entries.
//
// append() is a write(2) under one mutex; sync() is group commit: one caller fdatasyncs, the others
// wait for it. A segment is replaced only by rotate() (at a checkpoint), so the whole log is at most
// StoreConfig::log_bytes_max and a little. After a failed fdatasync the log refuses everything.
// Space is allocated ahead of the end, and what was appended begins its way to the device early
// (write_out, by the store's background thread), so that a sync has little left to do.
//
// Torn or damaged: the scan stops at the first entry that is not valid and next in number. If any
// later entry says that the missing one was durable when it was appended, the log is damaged and
// the target is refused; otherwise the rest is the torn end of a power cut and is cut off.
// ANY THREAD. Not here: what entries mean (recovery.cpp), when to rotate (checkpoint.cpp).
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "store/layout.h"

namespace braidfs::store {

struct LogScan {
  Status status = Status::kOk;  // kCorrupt: damaged where it was durable
  std::string message;
  uint64_t entries = 0;
};

class Log {
 public:
  Log(Device& device, const Uuid& uuid) noexcept : device_(device), uuid_(uuid) {}

  Status create();  // an empty log; the directory exists
  // Reads every segment; next_sequence and the torn end are known afterwards.
  LogScan load();
  void visit(const std::function<void(const EntryView&)>& visit) const;
  // Cuts the torn end off, begins a new segment and forgets what load() read.
  Status begin_after_load();

  // header.sequence and durable_sequence are filled in. bytes: the blocks of REDO runs.
  Status append(EntryHeader header, std::span<const EntryRun> runs, std::span<const uint64_t> sums,
                std::span<const iovec> bytes, uint64_t& sequence);
  Status sync(uint64_t sequence);  // entries up to sequence are durable
  bool has_much_to_write_out() const noexcept {
    return behind_.load(std::memory_order_relaxed) >= kWriteOutBytes;
  }
  Status write_out();  // begins; blocking where the device's queue is full

  Status rotate(uint64_t& number);         // new entries go to segment `number`
  Status drop_before(uint64_t number);     // segments that a checkpoint made superfluous
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  uint64_t last_sequence() const;

 private:
  static constexpr uint64_t kAllocateBytes = 4 << 20;
  static constexpr uint64_t kWriteOutBytes = 1 << 20;

  struct Segment {
    uint64_t number = 0;
    uint64_t first_sequence = 0;
    uint64_t valid_length = 0;             // bytes of header and valid entries
    uint64_t allocated = 0;                // bytes of space asked for
    uint64_t written_out = 0;              // bytes that are on their way to the device, or there
    std::vector<std::byte> content{};       // only between load and begin_after_load
    std::shared_ptr<File> file{};
  };

  int create_segment(uint64_t number, uint64_t first_sequence, std::shared_ptr<File>& file);
  int read_segment(Segment& segment);
  bool scan_segment(Segment& segment, LogScan& scan);
  void look_past(const Segment& segment, size_t from, LogScan& scan) const;
  Status write_at_end(std::span<const std::byte> encoded, std::span<const iovec> bytes);
  void allocate_ahead(Segment& segment, std::span<const iovec> parts);
  int trim_torn_end();
  static std::string path_of(uint64_t number);

  Device& device_;
  const Uuid uuid_;
  mutable std::mutex mu_;
  std::condition_variable synced_;
  std::vector<Segment> segments_;      // oldest first; the last one takes entries
  std::vector<std::shared_ptr<File>> unsynced_;  // earlier segments whose end is not yet durable
  size_t good_segments_ = 0;           // of load(): segments that hold valid entries
  uint64_t next_sequence_ = 1;
  uint64_t durable_sequence_ = 0;
  bool syncing_ = false;
  bool failed_ = false;
  std::atomic<uint64_t> bytes_{0};     // of entries in all segments
  std::atomic<uint64_t> behind_{0};    // bytes of the last segment that are not yet written out
  std::vector<std::byte> scratch_;

  void count_bytes();
};

}  // namespace braidfs::store
