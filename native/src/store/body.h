// The inside of the chunk store, shared by its source files: records.cpp (loads objects and groups
// into memory), write.cpp, read.cpp, durable.cpp (sync, stat, remove), cut.cpp (truncate, punch),
// seek.cpp, checkpoint.cpp, recovery.cpp, chunk_store.cpp (open, superblock, background thread,
// figures).
//
// Private to src/store. Threads: ANY THREAD, unless a function says which lock its caller holds.
#pragma once
#include <algorithm>
#include <bitset>
#include <condition_variable>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>

#include "store/gate.h"
#include "store/log.h"
#include "store/object_table.h"
#include "store/space.h"

namespace braidfs::store {

// From so many files on, one syncfs costs less than an fdatasync of each.
inline constexpr size_t kSyncAllMin = 24;
// One thread locks at most so many objects together, to sync them or to write them back.
#ifdef __SANITIZE_THREAD__
// The sanitizer's detector of deadlocks handles at most 64 locks.
inline constexpr size_t kLockedTogetherMax = 32;
#else
inline constexpr size_t kLockedTogetherMax = 1024;
#endif

// Calls fn with one part of the objects after the other, each with at most count_max objects.
template <typename Fn>
void for_batches(std::span<ObjectPointer> objects, size_t count_max, Fn fn) {
  for (size_t first = 0; first < objects.size(); first += count_max) {
    fn(objects.subspan(first, std::min(count_max, objects.size() - first)));
  }
}

struct GroupPiece {  // the part of one group that an operation touches
  uint32_t index = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  std::shared_ptr<Group> group;
};

inline std::bitset<kGroupBlocks> blocks_of(const GroupPiece& piece) noexcept {
  return (~std::bitset<kGroupBlocks>() >> (kGroupBlocks - piece.count)) << piece.first;
}

// Splits blocks [first, end) at group boundaries.
std::vector<GroupPiece> pieces_of(uint64_t first_block, uint64_t end_block);

struct WriteState {
  explicit WriteState(StoreBody& owner) noexcept : body(owner) {}
  WriteState(const WriteState&) = delete;
  WriteState& operator=(const WriteState&) = delete;
  ~WriteState();

  StoreBody& body;
  ObjectPointer object;
  RangeLock::Ticket ticket = 0;
  IoPlan plan;
  WriteRequest request;
  uint64_t first_block = 0;
  uint64_t end_block = 0;
  std::vector<GroupPiece> pieces;
  std::vector<EntryRun> runs;
  std::vector<uint64_t> sums;                    // one per block of the request
  std::vector<std::shared_ptr<RedoBlock>> redo;  // in the order of the REDO runs' blocks
  std::unique_ptr<Block> head;                   // the merged first block, when it is partial
  // The merged last block, when it is partial and not the first.
  std::unique_ptr<Block> tail;
  uint64_t new_blocks = 0;
};

struct BlockView {
  uint64_t sum = 0;
  uint64_t home = 0;  // offset in the file
  RedoPointer redo;
  bool hole = true;
};

struct ReadState {
  explicit ReadState(StoreBody& owner) noexcept : body(owner) {}
  ReadState(const ReadState&) = delete;
  ReadState& operator=(const ReadState&) = delete;
  ~ReadState();

  StoreBody& body;
  ObjectPointer object;
  RangeLock::Ticket ticket = 0;
  IoPlan plan;
  ReadRequest request;
  uint32_t length = 0;  // the request's length, cut at the object's end
  std::vector<BlockView> blocks;
  std::vector<GroupPiece> noted;  // groups in which this large read is noted (Group::read)
  std::vector<FilePart> parts;    // parts that are being read into the page cache
};

struct PageImage {
  std::shared_ptr<Group> group;
  RecordPage page;
  uint8_t place = 0;
  std::vector<std::pair<uint32_t, RedoPointer>> redo;  // by block: bytes that were written home
};

struct CheckpointPart {  // of one object
  ObjectPointer object;
  std::shared_ptr<File> file;
  std::vector<PageImage> images;
};

class StoreBody {
 public:
  StoreBody(std::shared_ptr<Device> files, const StoreConfig& settings);
  ~StoreBody();

  // chunk_store.cpp
  Status open(std::string& message);
  Status stop();
  Status set_target(uint32_t target);
  Status background_round();
  StoreFigures figures();
  void limit_files(uint32_t files_open_max) { table_.limit_files(files_open_max); }
  uint64_t incarnation() const noexcept { return superblock_.incarnation; }

  // write.cpp, read.cpp
  Status begin_write(WriteOp& op, const WriteRequest& request, Wait wait);
  Status finish_write(WriteOp& op);
  void release(WriteState& state) noexcept;
  Status begin_read(ReadOp& op, const ReadRequest& request, Wait wait);
  ReadResult finish_read(ReadOp& op, std::span<uint64_t> sums);
  bool fetch_to_lend(ReadOp& op);
  ReadResult lend_read(ReadOp& op, std::span<uint64_t> sums, Lent& lent);
  Status fetch(ObjectId id, uint32_t length, Fetching& fetching);
  void release(ReadState& state) noexcept;
  static IoPlan& plan_of(WriteOp& op) noexcept { return op.state_->plan; }

  // durable.cpp
  Status sync(ObjectId id, uint32_t epoch);
  Status sync_batch(std::span<const ObjectPointer> objects);
  Status make(ObjectId id, uint32_t epoch, bool must_exist);
  Status truncate(ObjectId id, uint64_t length, uint32_t epoch, bool must_exist);
  Status raise_epoch(ObjectId id, uint32_t epoch, bool must_exist);
  Status punch(ObjectId id, uint64_t offset, uint64_t length, uint32_t epoch);
  Status stat(ObjectId id, ObjectFigures& figures);
  Status seek(ObjectId id, uint32_t epoch, uint64_t offset, bool hole,
              SeekResult& result);                                           // seek.cpp
  Status examine(ObjectId id, uint32_t group, bool reads, Examined& found);  // examine.cpp
  Status mend(ObjectId id, uint64_t block, std::span<const std::byte> bytes, Mended& mended);
  void remove_all(std::span<const ObjectId> ids, std::span<Status> statuses);
  Status sync_older_than(Clock::duration age);

  // checkpoint.cpp
  Status checkpoint();

 private:
  friend class Recovery;
  using Guard = std::unique_lock<std::mutex>;

  // records.cpp; for all of these the caller holds object.mu
  Status load_object(Object& object, Wait wait);
  Status open_object(Object& object, Wait wait);  // kCorrupt, and reported, if it is damaged
  Status load_group(Object& object, uint32_t index, Wait wait, std::shared_ptr<Group>& group);
  Status load_pieces(Object& object, std::vector<GroupPiece>& pieces, Wait wait);
  Status file_of(Object& object, std::shared_ptr<File>& file, Wait wait = Wait::kYes);
  uint64_t next_group(Object& object, uint32_t index);
  Status direct_of(Object& object, std::shared_ptr<File>& file);
  Status create_object(Object& object);
  void make_dirty(const ObjectPointer& object, Group& group);
  void make_clean(Group& group);
  void changed(const ObjectPointer& object, uint64_t sequence);
  Status read_pages(File& file, Object& object, uint32_t index, Wait wait, RecordPage (&pages)[2]);
  void adopt_page(Object& object, uint32_t index, const RecordPage (&pages)[2], Group& group);
  void apply_cuts(const Object& object, uint32_t index, Group& group);
  static void apply_cut_to(const Punched& cut, uint32_t index, Group& group);
  void adopt_finished(const RecordPage (&pages)[2], const PageState (&states)[2],
                      Group& group) const;
  static bool is_cut_off(const Object& object, uint32_t index, uint64_t page_sequence) noexcept;
  Status find_missing_pages(Object& object, uint32_t index, Wait wait, Group& group);
  Status map_page(const ObjectPointer& object, uint32_t index, const Group& group,
                  std::vector<uint32_t>& also);
  Status map_pages(const ObjectPointer& object);
  Status load_ancestors(Object& object, uint32_t index);
  void drop_groups(Object& object);
  // Reads the verified bytes of one block. The caller holds the block's range lock, not the mutex.
  Status read_block(Object& object, const std::shared_ptr<File>& file, uint64_t block,
                    const BlockView& view, std::span<std::byte> bytes, Wait wait);
  Status reread_direct(Object& object, const BlockView& view, std::span<std::byte> bytes);
  static BlockView view_of(const Group& group, uint32_t index, uint32_t block);
  void report_corrupt(const Object& object, uint64_t block);
  Status count_error(Status status) noexcept;
  // Says so, once in a minute. Returns the status of that result, which is a negative errno.
  Status not_opened(const Object& object, int result);

  // write.cpp
  Status prepare(WriteState& state, Wait wait);
  Status lock_for_write(WriteState& state, Guard& guard, Wait wait);
  Status admit(Object& object, uint32_t epoch) const;
  Status free_other_slots(WriteState& state, Guard& guard, Wait wait);
  Status merge_edges(WriteState& state, Guard& guard, Wait wait);
  Status merge_block(WriteState& state, Guard& guard, uint64_t block, Wait wait,
                     std::unique_ptr<Block>& merged);
  void classify(WriteState& state);
  void place_piece(WriteState& state, GroupPiece& piece);
  Status plan_write(WriteState& state);
  const std::byte* source_of(const WriteState& state, uint64_t block) const noexcept;
  void add_part(IoPlan& plan, IoSegment& segment, const void* bytes, size_t length) const;
  Status log_write(WriteState& state, uint64_t& sequence);
  void apply_write(WriteState& state, uint64_t sequence);
  void switch_slot(Object& object, const EntryRun& run, uint64_t sequence, Group& group);
  Status wait_for_room(Wait wait);
  bool crowded() const noexcept;
  bool half_full() const noexcept;

  // read.cpp
  Status prepare(ReadState& state, Wait wait);
  Status plan_read(ReadState& state, Wait wait);
  void fetch_together(Object& object, const ReadRequest& request);
  bool reads_past_cache(ReadState& state, std::vector<GroupPiece>& pieces, Wait wait);
  Status verify_block(ReadState& state, size_t index);
  Status finish_block(ReadState& state, size_t index, uint64_t& sum);
  bool may_lend(const ReadState& state) const;

  // examine.cpp
  Status look_at(Object& object, uint32_t group, Examined& found, std::vector<BlockView>& views);
  Status look_for_damage(const ObjectPointer& object, std::span<const BlockView> views,
                         Examined& found);
  Status group_on_disk(Object& object, uint32_t index, std::shared_ptr<Group>& group);
  Status look_again(Object& object, File& file, uint64_t block, bool& damaged);
  Status open_past_cache(Object& object, std::shared_ptr<File>& file);
  Status renew_records(const ObjectPointer& object, File& file, Examined& found);
  Status mend_locked(Object& object, std::span<const GroupPiece> pieces,
                     std::span<const std::byte> bytes, Mended& mended);

  // durable.cpp
  struct Flush;  // the part of a sync that concerns one object
  Status capture(Flush& flush);
  Status flush_bytes(std::span<Flush> flushes);
  Status status_of_sync(int result) noexcept;
  Status commit(std::span<Flush> flushes);
  void free_committed(Object& object);
  bool release_punched(Object& object, const Punched& punched);
  EntryHeader header_for(const Object& object, EntryKind kind) const;
  struct Removal;
  bool begin_removal(Removal& removal, Wait wait);
  void end_removals(std::span<Removal> begun, std::span<Status> statuses);
  Status mark_removed(const ObjectPointer& object);

  // cut.cpp
  struct Edges {  // partial blocks, with zeros in the part that is cut
    std::vector<EntryRun> runs;
    std::vector<uint64_t> sums;
    std::vector<std::shared_ptr<RedoBlock>> redo;
  };
  Status lock_whole(Object& object, Guard& guard, RangeLock::Ticket& ticket);
  Status make_locked(const ObjectPointer& object, uint32_t epoch);
  Status truncate_locked(const ObjectPointer& object, Guard& guard, uint64_t length,
                         uint32_t epoch);
  Status zero_edge(Object& object, Guard& guard, uint64_t from, uint64_t to, Edges& edges);
  Status log_cut(const ObjectPointer& object, EntryHeader header, const Edges& edges);
  Status cut_groups(const ObjectPointer& object, uint64_t first_block, uint64_t end_block);
  Status release_tail(Object& object, uint64_t length);
  void release_boundary(Object& object, File& file, uint32_t index, uint32_t from);
  Status punch_locked(const ObjectPointer& object, Guard& guard, uint64_t offset, uint64_t end);

  // checkpoint.cpp
  Status checkpoint_batch(std::span<const ObjectPointer> objects);
  Status snapshot(const ObjectPointer& object, CheckpointPart& part);
  PageImage image_of(const Object& object, uint32_t index, const std::shared_ptr<Group>& group);
  Status write_redo(const CheckpointPart& part);
  Status sync_parts(std::span<const CheckpointPart> parts);
  Status write_images(std::span<const CheckpointPart> parts);
  void finish_part(CheckpointPart& part, bool written);
  void finish_group(Object& object, File& file, PageImage& image);
  Status sync_unlinked();

  // chunk_store.cpp
  Status create_target(std::string& message);
  Status read_superblock(std::string& message);
  Status write_superblock();
  Status count_objects();
  void background(const std::stop_token& stop);
  void say(int level, const std::string& text) const;

  std::shared_ptr<Device> device_;
  const StoreConfig config_;
  Space space_;
  std::atomic<uint64_t> redo_bytes_{0};
  ObjectTable table_;
  std::unique_ptr<Log> log_;
  Superblock superblock_;
  std::mutex superblock_mu_;
  std::atomic<uint64_t> dirty_groups_{0};
  std::atomic<uint64_t> objects_{0};
  std::atomic<uint64_t> errors_{0};
  std::atomic<Clock::duration> open_failure_told_{-std::chrono::hours(1)};
  std::atomic<uint64_t> checkpoints_{0};
  std::atomic<uint32_t> target_{0};
  bool recovering_ = false;
  // Recovery: the last checkpoint did not finish, so pages may be torn or missing.
  bool torn_expected_ = false;
  Gate gate_;
  std::mutex checkpoint_mu_;
  uint64_t checkpoint_start_ = 0;  // for RecordPage::log_start; guarded by checkpoint_mu_
  // Held by the thread that takes the sync_mu of several objects.
  std::mutex batch_mu_;
  std::mutex unlinked_mu_;
  std::unordered_set<std::string> unlinked_;  // directories with an unlink that is not durable yet
  std::mutex room_mu_;
  // Signalled when the log got shorter, and to wake the background thread.
  std::condition_variable_any room_;
  std::atomic<bool> checkpoint_wanted_{false};
  std::jthread thread_;
};

}  // namespace braidfs::store
