// The objects of one target: blocks with checksums, crash-safe (docs/INTERFACES.md section 4).
//
// An operation on bytes has three steps, so that a lane can do the I/O in its own way:
// - begin_* decides: it takes the range lock and returns a plan of preads or pwrites (IoPlan);
// - the caller performs the plan: run(), run_nowait(), or io_uring with complete();
// - finish_* of a write logs the entry and switches the records; of a read it verifies the blocks,
//   lays REDO bytes over them and fills holes.
//
// An op that is destroyed unfinished is cancelled: nothing has happened, and its lock is released.
//
// Wait::kNo never waits for a lock, for space in the log or for the disk: it answers kEagain, and
// the lane gives the *whole operation* to a worker thread, which begins it with Wait::kYes. Never
// queue a begun op to a pool of threads, because all of them may be waiting for its lock: destroy
// it and let the worker begin again. A begun op may be given to io_uring. kEagain is an answer to
// Wait::kNo only. kBusy after Wait::kYes means that the log stayed full for
// StoreConfig::wait_ms_max; nothing was done, and the client may retry.
//
// Threads: ANY THREAD. sync, truncate, raise_epoch, punch, seek, examine, mend, remove, checkpoint
// and stop block, so they are for worker threads only. Not here: sockets, capabilities, sessions,
// verification of the sums on the wire (server/).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "braidfs/status.h"
#include "store/device.h"
#include "store/requests.h"

namespace braidfs::store {

class StoreBody;  // private to the store

class ChunkStore;

struct StoreOpened {
  std::unique_ptr<ChunkStore> store;  // null: the target was refused
  // kEinval: not a target, or a foreign one; kCorrupt: the log is damaged.
  Status status = Status::kOk;
  std::string message;  // when refused: one sentence for people
};

class ChunkStore {
 public:
  // Opens a target and recovers it before returning: replays the log and checkpoints it.
  static StoreOpened open(std::shared_ptr<Device> device, const StoreConfig& config);
  // Without a stop() before, everything in memory is lost, as after kill -9.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Syncs and checkpoints everything, and marks the target clean. No op may be in progress or begin
  // later.
  Status stop();

  Status begin_write(WriteOp& op, const WriteRequest& request, Wait wait);
  // kEnospc, kEio: the write did not happen. Takes the plan's status into account.
  Status finish_write(WriteOp& op);
  // kNoObject: there is no such object (a hole, unless the layout says otherwise).
  Status begin_read(ReadOp& op, const ReadRequest& request, Wait wait);
  // `sums` has room for blocks_touched(offset, length) of the request. Whole blocks get their
  // stored sum.
  ReadResult finish_read(ReadOp& op, std::span<uint64_t> sums);

  // Finishes a raw read in place of finish_read(): all whole blocks are returned as parts of the
  // file, which are in the page cache and not in the buffer. kEagain: they are not all cached now,
  // or are too few to be worth it; the op is unchanged. After this call the blocks may be
  // overwritten while they are being sent: their sums show it.
  ReadResult lend_read(ReadOp& op, std::span<uint64_t> sums, Lent& lent);
  // Begins to read the op's blocks into the page cache. True: the plan now has only the last block,
  // and after it is done comes lend_read(); if that refuses, the read has to begin again. False:
  // nothing of the read is to be lent.
  bool fetch_to_lend(ReadOp& op);

  // Begins to read the object's records, and `length` bytes from its beginning (at most
  // kGroupBytes), into the page cache, for later reads. Blocks when the file is not open.
  Status fetch(ObjectId object, uint32_t length, Fetching& fetching);

  // A whole operation: begins with Wait::kYes, runs, finishes.
  Status write(const WriteRequest& request);
  ReadResult read(const ReadRequest& request, std::span<uint64_t> sums);

  // No such object: kOk, since nothing was lost that this target knew. An epoch below the object's:
  // kStaleTruncateEpoch. The default is the newest one.
  Status sync(ObjectId object, uint32_t epoch = UINT32_MAX);
  // Creates the object, empty, if it does not exist; durable after sync(). must_exist: kNoObject
  // instead of creating it.
  Status make(ObjectId object, uint32_t epoch, bool must_exist = false);
  // Sets the object's length. Creates a missing object, so that its epoch is known; with must_exist
  // it answers kNoObject instead. An epoch that is not above the object's is answered with
  // kStaleTruncateEpoch, except for a repetition of the truncation with that very epoch, which is
  // durable when answered.
  Status truncate(ObjectId object, uint64_t length, uint32_t epoch, bool must_exist = false);
  // The object's epoch becomes this one, unless it is higher already; no write under a lower one is
  // under way then. Creates a missing object; with must_exist it answers kNoObject instead. Durable
  // when answered, and so is what was written.
  Status raise_epoch(ObjectId object, uint32_t epoch, bool must_exist = false);
  // kNoObject: the object does not exist. Then the range was a hole, or the object was lost.
  Status punch(ObjectId object, uint64_t offset, uint64_t length, uint32_t epoch);
  Status stat(ObjectId object, ObjectFigures& figures);  // kNoObject
  // Finds the first byte at or behind offset that is data or (hole) that is not; kNoObject,
  // kStaleTruncateEpoch.
  Status seek(ObjectId object, uint32_t epoch, uint64_t offset, bool hole, SeekResult& result);
  // Examines the first group with data from `group` on; kNoObject. The page cache is not used.
  // reads: else only what the records say is found out.
  Status examine(ObjectId object, uint32_t group, bool reads, Examined& found);
  // Writes these bytes to those of the blocks from `block` on that are damaged and had these bytes;
  // durable when answered. At most kGroupBytes; kNoObject, kCorrupt without records.
  Status mend(ObjectId object, uint64_t block, std::span<const std::byte> bytes, Mended& mended);
  Status remove(ObjectId object);  // DELETE; a missing object: kOk
  // The same for many objects, with one flush of the log; one status for each.
  void remove_all(std::span<const ObjectId> objects, std::span<Status> statuses);

  Status sync_all();    // the unsynced bytes of all objects
  Status checkpoint();  // empties the log
  // What the background thread does twice a second; for tests without that thread.
  Status background_round();
  Status set_target(uint32_t target);  // stored in the superblock
  uint64_t incarnation() const noexcept;
  StoreFigures figures();
  // Replaces files_open_max: the number of targets in this process has changed.
  void limit_files(uint32_t files_open_max);

 private:
  explicit ChunkStore(std::unique_ptr<StoreBody> body) noexcept;
  std::unique_ptr<StoreBody> body_;
};

}  // namespace braidfs::store
