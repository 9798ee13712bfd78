// The objects of one target: blocks with checksums, crash-safe (docs/INTERFACES.md section 4).
//
// An operation on bytes has three steps, so that a lane can do its I/O as it likes:
//   begin_*   decides: takes the range lock, gives a plan of preads or pwrites (IoPlan);
//   the caller performs the plan (run(), run_nowait(), or io_uring with complete());
//   finish_*  a write: logs and switches the records; a read: verifies, overlays, fills holes.
// An op that is destroyed unfinished is cancelled: nothing happened, the lock is released.
//
// Wait::kNo never waits for a lock, for space in the log or for the disk: it answers kEagain, and
// the lane gives the *whole operation* to a worker thread, which begins it with Wait::kYes.
// Never queue a begun op to a pool of threads: its lock may be what all of them wait for; destroy
// it and let the worker begin again. A begun op given to io_uring is fine.
// kEagain is only an answer to Wait::kNo. kBusy after Wait::kYes: the log stayed full for
// StoreConfig::wait_ms_max; nothing was done, the client may retry.
//
// Everything here is ANY THREAD. sync, truncate, punch, seek, remove, checkpoint and stop block:
// worker threads only. Not here: sockets, capabilities, sessions, verification of wire sums
// (server/).
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

// A block on disk that is not what was written, or cannot be read.
struct CorruptBlock {
  ObjectId object;
  uint64_t offset = 0;  // of the block in the object
};

struct StoreConfig {
  Uuid cluster{};
  Uuid target{};                // the target's uuid; used when it is created, checked otherwise
  bool create = false;          // an empty directory becomes a target; otherwise it must be one
  uint64_t capacity_bytes = 0;  // 0: the whole device
  uint64_t reserve_bytes = 64u << 20;    // kept free on the device for log and records
  uint64_t log_bytes_max = 256u << 20;   // writers wait beyond it
  uint64_t redo_bytes_max = 128u << 20;  // bytes of REDO entries held in memory
  uint32_t dirty_groups_max = 32768;
  uint32_t groups_cached_max = 16384;  // record pages in memory, ~3.3 KiB each
  uint32_t files_open_max = 2048;
  uint32_t objects_cached_max = 65536;
  uint32_t direct_bytes_min = 128u << 10;  // writes from this size on go O_DIRECT when aligned
  uint32_t direct_read_bytes_min =
      256u << 10;  // of what is not cached, unless it is read again and again
  uint32_t lend_bytes_min =
      32u << 10;  // of raw reads that go out of the page cache: less is copied sooner
  // Older unsynced bytes are synced in the background, many objects together: before clients ask
  // for it object by object (sync_after_ms of client/core.h).
  uint32_t sync_age_ms = 3000;
  uint32_t wait_ms_max = 30000;
  bool background = true;  // a thread that syncs old bytes and checkpoints
  std::function<void(const CorruptBlock&)> on_corrupt;        // any thread, short
  std::function<void(int level, const std::string&)> on_log;  // 10 debug .. 40 error; any thread
};

// One contiguous pread or pwrite of a plan.
struct IoSegment {
  uint64_t file_offset = 0;
  uint32_t part_first = 0;  // parts[part_first, part_first + part_count)
  uint32_t part_count = 0;
  uint32_t length = 0;  // bytes still to be transferred; 0: done
};

// What the caller must read or write. LANE or worker: one thread at a time.
class IoPlan {
 public:
  bool is_write() const noexcept { return write_; }
  int fd() const noexcept { return file_ ? file_->fd() : -1; }  // owned by the plan
  bool direct() const noexcept { return direct_; }
  std::span<const IoSegment> segments() const noexcept { return segments_; }
  std::span<const iovec> parts(const IoSegment& segment) const noexcept;
  uint64_t bytes() const noexcept;  // still to be transferred
  bool done() const noexcept;  // no segment has bytes left (a plan may be empty from the start)
  Status status() const noexcept { return status_; }

  // Completion of one segment with the result of preadv/pwritev or of its io_uring twin.
  // True: the segment was short and now holds the rest; submit it again.
  bool complete(size_t index, int64_t result) noexcept;
  void run() noexcept;  // all that is left, blocking; errors in status()
  bool
  run_nowait() noexcept;  // reads only what is cached, nothing by O_DIRECT; true: nothing is left

 private:
  friend class StoreBody;
  void consume(IoSegment& segment, uint32_t count) noexcept;
  bool is_aligned() const noexcept;  // in memory, as O_DIRECT wants it

  std::shared_ptr<File> file_;
  std::vector<IoSegment> segments_;
  std::vector<iovec> parts_;
  Status status_ = Status::kOk;
  bool write_ = false;
  bool direct_ = false;
};

struct WriteRequest {
  ObjectId object;
  uint32_t epoch = 0;  // truncate epoch; older than the object's: kStaleTruncateEpoch
  uint64_t offset = 0;
  std::span<const std::byte> payload;  // 1 byte .. 16 MiB; lives until finish_write returned
  std::span<const uint64_t> sums;      // of the blocks touched, verified by the caller; or empty
  bool must_exist = false;             // kNoObject where it would make the object
};

struct ReadRequest {
  ObjectId object;
  uint64_t offset = 0;
  uint32_t length = 0;  // 1 byte .. 16 MiB
  // Whole blocks: read_buffer_bytes(offset, length) bytes, best aligned to 4096. The bytes asked
  // for begin at buffer + offset % 4096. Lives until finish_read returned.
  std::span<std::byte> buffer;
  // Whole blocks are not compared with their recorded checksums: who gets both does it.
  bool raw = false;
};

constexpr size_t read_buffer_bytes(uint64_t offset, uint32_t length) noexcept {
  const uint64_t first = offset / limits::kBlockSize;
  const uint64_t end = (offset + length + limits::kBlockSize - 1) / limits::kBlockSize;
  return static_cast<size_t>((end - first) * limits::kBlockSize);
}

class StoreBody;  // these are private to the store
struct WriteState;
struct ReadState;

class WriteOp {
 public:
  WriteOp() noexcept;
  WriteOp(WriteOp&&) noexcept;
  WriteOp& operator=(WriteOp&&) noexcept;
  ~WriteOp();
  IoPlan& plan() noexcept;  // only after begin_write answered kOk

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
  IoPlan& plan() noexcept;  // only after begin_read answered kOk

 private:
  friend class StoreBody;
  std::unique_ptr<ReadState> state_;
};

struct ReadResult {
  Status status = Status::kOk;
  uint32_t length = 0;     // bytes valid at buffer + offset % 4096; short at the object's end
  uint32_t sum_count = 0;  // blocks_touched(offset, length)
};

// Bytes of a read where they lie in the object's file, instead of in the buffer.
struct Lent {
  std::shared_ptr<File> file;
  std::vector<FilePart>
      parts;  // whole blocks; what is left of the read is in the buffer, in its place
};

// What is on its way into the page cache.
struct Fetching {
  std::shared_ptr<File> file;
  uint64_t last = 0;  // its last byte, which is there when all is
};

struct ObjectFigures {
  uint64_t length = 0;
  uint64_t allocated = 0;
  uint32_t epoch = 0;
};

struct SeekResult {
  static constexpr uint64_t kNothing = ~uint64_t{0};
  uint64_t at = kNothing;  // the offset found; kNothing: no more data in this object
  bool ended = true;       // false: nothing before `at`, look on from there
};

struct StoreFigures {
  uint32_t target = 0;  // id given by the metaserver, 0: none yet
  Uuid uuid{};
  uint64_t incarnation = 0;
  uint64_t bytes_total = 0;
  uint64_t bytes_free = 0;
  uint64_t files_total = 0;  // inodes of its device; 0: without a limit
  uint64_t files_free = 0;
  uint64_t objects = 0;
  uint64_t errors = 0;     // I/O errors and corrupt blocks since it was opened
  uint64_t log_bytes = 0;  // not yet checkpointed
  uint64_t redo_bytes = 0;
  uint64_t checkpoints = 0;
  uint64_t objects_cached = 0;
  uint64_t groups_cached = 0;
  uint64_t files_open = 0;
};

class ChunkStore;

struct StoreOpened {
  std::unique_ptr<ChunkStore> store;  // null: refused
  Status status = Status::kOk;        // kEinval: no target or a foreign one; kCorrupt: damaged log
  std::string message;                // one sentence for people when refused
};

class ChunkStore {
 public:
  // Recovers the target before it returns (replays the log, checkpoints it).
  static StoreOpened open(std::shared_ptr<Device> device, const StoreConfig& config);
  // Without stop() first, everything in memory is forgotten, as by kill -9.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Syncs and checkpoints everything and marks the target clean. No op may be in progress or come.
  Status stop();

  Status begin_write(WriteOp& op, const WriteRequest& request, Wait wait);
  // kEnospc, kEio: the write did not happen. Takes the plan's own status into account.
  Status finish_write(WriteOp& op);
  // kNoObject: no such object (a hole, unless the layout says otherwise).
  Status begin_read(ReadOp& op, const ReadRequest& request, Wait wait);
  // sums: room for blocks_touched(offset, length) of the request; whole blocks get the stored sum.
  ReadResult finish_read(ReadOp& op, std::span<uint64_t> sums);

  // Of a raw read that has begun, in place of finish_read(): all whole blocks as parts of the file,
  // which are in the page cache and not in the buffer. kEagain: not here and now, or too little to
  // be worth it; the op is as it was. From then on the blocks may be written while they are on
  // their way: their sums tell.
  ReadResult lend_read(ReadOp& op, std::span<uint64_t> sums, Lent& lent);
  // Begins to fetch its blocks into the page cache. True: the plan has the last of them only, and
  // once that is done lend_read() is next; what that refuses has to begin again. False: nothing of
  // it is to be lent.
  bool fetch_to_lend(ReadOp& op);

  // Begins to read the object's records and so many bytes (at most kGroupBytes) of its beginning
  // into the page cache, for reads to come. Blocks where the file is not open.
  Status fetch(ObjectId object, uint32_t length, Fetching& fetching);

  // The same, whole: begin with Wait::kYes, run, finish.
  Status write(const WriteRequest& request);
  ReadResult read(const ReadRequest& request, std::span<uint64_t> sums);

  Status sync(ObjectId object);  // no such object: kOk (nothing was lost that this target knew)
  // The object is there from now on, empty if it was not; durable after sync(). must_exist:
  // kNoObject if it was not.
  Status make(ObjectId object, uint32_t epoch, bool must_exist = false);
  // length: of the object. Creates the object if there is none, so that the epoch is known; with
  // must_exist there has to be one (kNoObject). An epoch that is not above the object's is
  // kStaleTruncateEpoch, but for the very cut that it is of: that is durable when answered.
  Status truncate(ObjectId object, uint64_t length, uint32_t epoch, bool must_exist = false);
  // No such object: kNoObject. None of it was data, unless it is lost.
  Status punch(ObjectId object, uint64_t offset, uint64_t length, uint32_t epoch);
  Status stat(ObjectId object, ObjectFigures& figures);  // kNoObject
  // The first byte at or behind offset that is data, or (hole) that is not; kNoObject,
  // kStaleTruncateEpoch.
  Status seek(ObjectId object, uint32_t epoch, uint64_t offset, bool hole, SeekResult& result);
  Status remove(ObjectId object);  // DELETE; none: kOk
  // The same of many, with one flush of the log; a status for each.
  void remove_all(std::span<const ObjectId> objects, std::span<Status> statuses);

  Status sync_all();                   // every object's unsynced bytes
  Status checkpoint();                 // empties the log
  Status set_target(uint32_t target);  // stored in the superblock
  uint64_t incarnation() const noexcept;
  StoreFigures figures();
  // Another bound than files_open_max: the process has other targets by now.
  void limit_files(uint32_t files_open_max);

 private:
  explicit ChunkStore(std::unique_ptr<StoreBody> body) noexcept;
  std::unique_ptr<StoreBody> body_;
};

}  // namespace braidfs::store
