// The requests to a chunk store and its answers: ids, settings, requests, plans and results.
//
// Threads: one request, op, plan or result is used by one thread at a time, a lane or a worker.
// Invariant: an IoPlan keeps its file open; memory of a request stays valid until its op is
// finished or destroyed. Not here: the store itself (chunk_store.h).
#pragma once
#include <sys/uio.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "braidfs/limits.h"
#include "braidfs/status.h"
#include "core/file_part.h"
#include "store/device.h"

namespace braidfs::store {

struct ObjectId {
  uint64_t file_id = 0;
  uint32_t stripe_index = 0;
  auto operator<=>(const ObjectId&) const = default;
};

enum class Wait : uint8_t { kNo, kYes };

using Uuid = std::array<std::byte, 16>;

// A block on disk that differs from what was written, or that cannot be read.
struct CorruptBlock {
  ObjectId object;
  uint64_t offset = 0;  // offset of the block in the object
};

struct StoreConfig {
  Uuid cluster{};
  // The target's uuid: given to a new target, compared with that of an existing one.
  Uuid target{};
  // true: an empty directory becomes a target. false: it must be a target already.
  bool create = false;
  uint64_t capacity_bytes = 0;           // 0: the whole device
  uint64_t reserve_bytes = 64u << 20;    // kept free on the device for log and records
  uint64_t log_bytes_max = 256u << 20;   // beyond it writers wait
  uint64_t redo_bytes_max = 128u << 20;  // bytes of REDO entries held in memory
  uint32_t dirty_groups_max = 32768;
  uint32_t groups_cached_max = 16384;  // record pages in memory, about 3.3 KiB each
  uint32_t files_open_max = 2048;
  uint32_t objects_cached_max = 65536;
  // Aligned writes from this size on use O_DIRECT.
  uint32_t direct_bytes_min = 128u << 10;
  // Reads from this size on of what is not cached use O_DIRECT, unless the range is read again and
  // again.
  uint32_t direct_read_bytes_min = 256u << 10;
  // Raw reads from this size on are sent out of the page cache; shorter ones are copied, which is
  // faster.
  uint32_t lend_bytes_min = 32u << 10;
  // Unsynced bytes that are older are synced in the background, many objects together, before
  // clients ask for it object by object (sync_after_ms of client/context.h).
  uint32_t sync_age_ms = 3000;
  uint32_t wait_ms_max = 30000;
  bool background = true;  // a thread that syncs old bytes and checkpoints
  std::function<void(const CorruptBlock&)> on_corrupt;  // called by any thread; must be short
  // Levels: 10 debug .. 40 error. Called by any thread.
  std::function<void(int level, const std::string&)> on_log;
};

// One contiguous pread or pwrite of a plan.
struct IoSegment {
  uint64_t file_offset = 0;
  uint32_t part_first = 0;  // parts[part_first, part_first + part_count)
  uint32_t part_count = 0;
  uint32_t length = 0;  // bytes still to transfer; 0: done
};

// What the caller must read or write. Used by one thread at a time, a lane or a worker.
class IoPlan {
 public:
  bool is_write() const noexcept { return write_; }
  int fd() const noexcept { return file_ ? file_->fd() : -1; }  // owned by the plan
  bool direct() const noexcept { return direct_; }
  std::span<const IoSegment> segments() const noexcept { return segments_; }
  std::span<const iovec> parts(const IoSegment& segment) const noexcept;
  uint64_t bytes() const noexcept;  // still to transfer
  // No segment has bytes left. A plan may be empty from the start.
  bool done() const noexcept;
  Status status() const noexcept { return status_; }

  // Records the result of one segment's preadv/pwritev, or of the same operation through io_uring.
  // True: the segment was short and now describes the rest, which is to be submitted again.
  bool complete(size_t index, int64_t result) noexcept;
  // Performs all that is left, blocking; errors are in status().
  void run() noexcept;
  // Reads only what is cached, and nothing by O_DIRECT. True: nothing is left.
  bool run_nowait() noexcept;

 private:
  friend class StoreBody;
  void consume(IoSegment& segment, uint32_t count) noexcept;
  bool is_aligned() const noexcept;  // the memory is aligned as O_DIRECT needs it

  std::shared_ptr<File> file_;
  std::vector<IoSegment> segments_;
  std::vector<iovec> parts_;
  Status status_ = Status::kOk;
  bool write_ = false;
  bool direct_ = false;
};

struct WriteRequest {
  ObjectId object;
  // The truncate epoch. Older than the object's: kStaleTruncateEpoch.
  uint32_t epoch = 0;
  uint64_t offset = 0;
  std::span<const std::byte> payload;  // 1 byte .. 16 MiB; valid until finish_write() returned
  // Sums of the touched blocks, verified by the caller; or empty.
  std::span<const uint64_t> sums;
  bool must_exist = false;  // answers kNoObject where it would create the object
};

struct ReadRequest {
  ObjectId object;
  uint64_t offset = 0;
  uint32_t length = 0;  // 1 byte .. 16 MiB
  // Room for whole blocks: read_buffer_bytes(offset, length) bytes, preferably aligned to 4096. The
  // requested bytes begin at buffer + offset % 4096. Valid until finish_read() returned.
  std::span<std::byte> buffer;
  // Whole blocks are not compared with their recorded checksums: the receiver of bytes and sums
  // does that.
  bool raw = false;
};

constexpr size_t read_buffer_bytes(uint64_t offset, uint32_t length) noexcept {
  const uint64_t first = offset / limits::kBlockSize;
  const uint64_t end = (offset + length + limits::kBlockSize - 1) / limits::kBlockSize;
  return static_cast<size_t>((end - first) * limits::kBlockSize);
}

class StoreBody;  // private to the store
struct WriteState;
struct ReadState;

class WriteOp {
 public:
  WriteOp() noexcept;
  WriteOp(WriteOp&&) noexcept;
  WriteOp& operator=(WriteOp&&) noexcept;
  ~WriteOp();
  IoPlan& plan() noexcept;  // only after begin_write() answered kOk

 private:
  friend class StoreBody;
  std::unique_ptr<WriteState> state_;
};

class ReadOp {
 public:
  ReadOp() noexcept;
  ReadOp(ReadOp&&) noexcept;
  ReadOp& operator=(ReadOp&&) noexcept;
  ~ReadOp();
  IoPlan& plan() noexcept;  // only after begin_read() answered kOk

 private:
  friend class StoreBody;
  std::unique_ptr<ReadState> state_;
};

struct ReadResult {
  Status status = Status::kOk;
  // Valid bytes at buffer + offset % 4096; fewer than requested at the object's end.
  uint32_t length = 0;
  uint32_t sum_count = 0;  // blocks_touched(offset, length)
};

// Bytes of a read that stay where they are in the object's file, instead of being in the buffer.
struct Lent {
  std::shared_ptr<File> file;
  // Whole blocks. The rest of the read is in the buffer, at its own place.
  std::vector<FilePart> parts;
};

// A range that is being read into the page cache.
struct Fetching {
  std::shared_ptr<File> file;
  // Offset of its last byte; when that byte is cached, everything is.
  uint64_t last = 0;
};

struct ObjectFigures {
  uint64_t length = 0;
  uint64_t allocated = 0;
  uint32_t epoch = 0;
};

struct SeekResult {
  static constexpr uint64_t kNothing = ~uint64_t{0};
  // The offset that was found; kNothing: the object has no more data.
  uint64_t at = kNothing;
  bool ended = true;  // false: nothing before `at`; seek again from there
};

// What an examination finds of one group of an object.
struct Examined {
  struct Sum {
    uint64_t block = 0;
    uint64_t sum = 0;  // as recorded
  };
  uint64_t length = 0;  // of the object
  uint32_t epoch = 0;   // of the object
  uint32_t group = 0;   // which one it is: the first with data from the one that was asked for
  bool ended = false;   // there is none
  // Its records are lost (with `ended`: those of the whole object), and with them what it held.
  bool records_lost = false;
  uint32_t records_renewed = 0;   // were damaged on the device, and are written again from memory
  uint64_t bytes = 0;             // read from the device
  std::vector<Sum> sums;          // of all blocks that are not zeros
  std::vector<uint64_t> damaged;  // blocks whose bytes are not those that were written
};

struct Mended {
  uint32_t mended = 0;  // blocks
  uint32_t left = 0;    // damaged still: the bytes were others than what was written, or cannot be
};

struct StoreFigures {
  uint32_t target = 0;  // the id that the metaserver gave; 0: none yet
  Uuid uuid{};
  uint64_t incarnation = 0;
  uint64_t bytes_total = 0;
  uint64_t bytes_free = 0;
  uint64_t files_total = 0;  // inodes of the device; 0: no limit
  uint64_t files_free = 0;
  uint64_t objects = 0;
  uint64_t errors = 0;     // I/O errors and corrupt blocks since the target was opened
  uint64_t log_bytes = 0;  // not checkpointed yet
  uint64_t redo_bytes = 0;
  uint64_t checkpoints = 0;
  uint64_t objects_cached = 0;
  uint64_t groups_cached = 0;
  uint64_t files_open = 0;
};

}  // namespace braidfs::store
