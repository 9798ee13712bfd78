// What a lane knows of one open inode: its view, its size, what was written and not committed, its
// error. Its written pieces are in PieceTable (piece_table.h), under the same mutex.
//
// Everything here is decided synchronously under mu(); the caller acts afterwards (pieces.h sends,
// operations answer). Methods marked LOCKED need mu() held; the others take it.
// Threads: ANY LANE, guarded by mu_. It is the only lock on the path of a file's bytes; those of
// Memory and EventQueue are leaves below it, and two inodes' are never held together.
#pragma once
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "braidfs/commit_flags.h"
#include "braidfs/leases.h"
#include "client/cuts.h"
#include "client/events.h"
#include "client/inode_states.h"
#include "client/operation.h"
#include "client/piece_table.h"
#include "client/records.h"
#include "names/change_journal.h"

namespace braidfs::client {

// Size and time to be committed at the metaserver.
struct Written {
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint32_t flags = 0;  // kCommit*
};

// Whether small writes come beside what was written a moment ago, whichever process makes them:
// ranks that write one file in turns, or each its own part of it. So it is while every third of
// them does; random ones do not.
class SideBySide {
 public:
  void note(bool is_beside) noexcept {
    score_ = std::clamp(score_ + (is_beside ? 2 : -1), 0, kScoreMax);
  }
  explicit operator bool() const noexcept { return score_ >= kScoreEnough; }

 private:
  static constexpr int kScoreMax = 256;  // a rank may write alone for a while
  static constexpr int kScoreEnough = 4;
  int score_ = 0;
};

class Inode {
 public:
  explicit Inode(uint64_t ino) : ino_(ino) {}

  uint64_t ino() const noexcept { return ino_; }
  std::mutex& mu() noexcept { return mu_; }

  // ---- attributes and view ----
  FileViewPtr view() {
    const std::scoped_lock lock(mu_);
    return view_;
  }
  // A record of older objects than those known changes nothing. False: it is gone.
  bool put(const Attributes& attributes, const FileViewPtr& view, Actions& actions);
  // Where its bytes are has changed, or the right to reach them, and nothing else: no size, no
  // written piece. False: it is not younger than what is known, or not a view of these bytes.
  bool view_put(const FileViewPtr& view);
  // After SETATTR(size): the record is the truth, bytes beyond it are gone.
  void resize(const Attributes& attributes, FileView view, Actions& actions);
  // Drops whatever was written and is not committed, and what would be sent again: others may have
  // written there. An open inode's next SYNC still tells whether the rest is durable.
  enum class Loss : uint8_t { kNone, kUnsynced, kWritten };
  Loss lose(Actions& actions);
  const FileViewPtr& view_locked() const noexcept { return view_; }  // LOCKED
  uint64_t size() const noexcept { return size_; }                   // LOCKED
  void committed(const Attributes& attributes);                      // LOCKED
  void mark_durable(uint64_t file_id, uint64_t stripe_bits);         // LOCKED

  PieceTable& pieces() noexcept { return pieces_; }  // LOCKED

  // ---- the local cache: LOCKED ----
  // Names the bytes that targets have (records.h), as long as DATA is leased; 0: not known, or they
  // change.
  uint64_t stamp() const noexcept;
  // From now on other bytes than the known record is of; those of the next version have a stamp
  // again.
  void bytes_change() noexcept;
  void forget_stamp() noexcept { stamp_ = 0; }
  // The stamp of the newest record that was received, leased or not.
  uint64_t record_stamp() const noexcept { return record_stamp_; }
  bool is_immutable() const noexcept { return immutable_; }

  // ---- replicas that are to be dropped from the layout: LOCKED ----
  // This target has failed the file: the one object, or (without a number) all that it has of the
  // file. Returns what Python is to be told, which is the same again only after a while. The last
  // replica of a stripe is not dropped.
  std::optional<Event> drop_replicas(uint32_t target, std::optional<uint32_t> object_number,
                                     Clock::time_point now);

  std::atomic<bool> loss_logged{false};  // the log has it that an object of this inode is lost

  // ---- written and not committed: LOCKED ----
  // kill: kCommitKill*. True when the file grew.
  bool wrote(uint64_t end, int64_t mtime_ns, uint32_t kill);
  std::optional<Written> written() const;
  // Its time of writing was set: when it was written before is not to be committed.
  void forget_written_time() noexcept;
  // The same, and what a commit has taken that is not answered yet.
  std::optional<Written> uncommitted() const;
  std::optional<Written> take_written();
  void give_back(const Written& written);
  // Bytes until there are on their way to the targets.
  void sends_until(uint64_t end) noexcept { stored_end_ = std::max(stored_end_, end); }
  bool committing = false;
  Written in_commit{};  // what that commit has taken
  std::vector<std::shared_ptr<Operation>> commit_waiters;

  // ---- cuts that the metaserver is told of later (cuts.h): LOCKED ----
  Cuts cuts{};
  // It may have this size from now on without a word to anybody, as far as its lease goes.
  bool may_be_cut(uint64_t size) const noexcept;
  void cut(uint64_t size, int64_t mtime_ns, Clock::time_point now, Actions& actions);
  // The question to be put, if there is one and none is under way.
  std::optional<Event> report_cut();
  // It was answered: by what the file is now, or an error.
  void cut_reported(const Attributes& attributes, FileView view, Actions& actions);
  void cut_failed(int error, Clock::time_point now, Actions& actions);

  // ---- a file that lanes made: LOCKED ----
  // What is told with its birth (docs/decisions/0026), which is with the lanes as long as
  // `untaken`.
  struct Birth {
    bool untaken = false;
    bool time_set = false;  // by a setting, which is told behind it
    names::BirthSince since{};
  };
  Birth birth;
  // Size and time that were written are told with the birth, as if the metaserver had been asked
  // and had answered: `committing` until tables have them, too. False: that is not possible, or
  // there is nothing.
  bool commit_with_birth();

  // ---- a new file that may come to lie in its inode's record (docs/decisions/0037): LOCKED ----
  Inlining inlining = Inlining::kNo;
  uint32_t inline_writes = 0;  // WRITEs that left it there, since it is known here
  // The metaserver knows it, or what was written to it is lost: its bytes cannot come along.
  void end_inlining() noexcept;
  bool is_handing_over() const noexcept {
    return inlining == Inlining::kHandingOver || inlining == Inlining::kReportedMeanwhile;
  }
  // All of it is in one piece here that was never sent, and what it is told with its birth is size
  // and time.
  bool may_lie_inline(uint32_t length_max) const noexcept;
  // They were. `with`: the view that they were handed over with; another one is of since then.
  void lies_inline(const FileViewPtr& with, std::string bytes);
  // A WRITE has to ask first: then the metaserver gives the file objects.
  bool lies_inline() const noexcept { return is_handing_over() || !view_->inline_bytes.empty(); }

  // ---- set-id bits: LOCKED ----
  // Mode and group of a file with such bits, as far as the kernel may believe so; mode 0: it has
  // none. A record that is older than a change may bring them back: that costs one notification too
  // many.
  struct SetIds {
    uint32_t mode = 0;
    uint32_t gid = 0;
  };
  SetIds set_ids{};
  // Those of a file that the metaserver is not told of yet are all known here: nobody else can have
  // set any.
  bool may_have_set_ids() const noexcept {
    return set_ids.mode != 0 || !(birth.untaken || is_unreported());
  }
  void note_set_ids(uint32_t mode, uint32_t gid) noexcept {
    if ((mode & (S_ISUID | S_ISGID)) != 0) set_ids = {mode, gid};
  }

  uint32_t noted = 0;  // its slot in OpenRecord, while something of it is not durable
  // Nothing of it would be lost with this process.
  bool is_clean() const noexcept {
    return pieces_.unacknowledged() == 0 && !pieces_.unsynced() && !committing &&
           (written_.flags & kCommitSize) == 0 && !cuts.unreported();
  }

  // All replicas have made durable what was written.
  bool is_synced() const noexcept { return pieces_.unacknowledged() == 0 && !pieces_.unsynced(); }

  uint32_t lost_count = 0;  // of evictions that cost written bytes or sizes

  // ---- leases: LOCKED ----
  uint32_t lease = 0;  // kLease* of what this session holds, as far as leases count (leases.h)
  // kLease* of what is recalled but not returned yet: reads and writes may go on under it, since
  // one that waited for the metaserver with a page locked would stop the very invalidation that the
  // return waits for; they leave nothing in the kernel's pages.
  uint32_t recalling = 0;
  // Reads or writes went on while the lease was recalled, or waited for it then and go on.
  bool used_during_recall = false;
  // Operations that wait until Python has got a lease; each looks again what it has when woken.
  // Questions are counted: the answer to one that was begun before an operation may be too old.
  struct Waiter {
    std::shared_ptr<Operation> operation;
    uint64_t begin;  // of the bytes that it reads or writes: the kernel may have locked their pages
    uint64_t end;
  };
  // Of a question that has bytes which are to go on lying in the inode's record.
  struct InlineAnswer {
    std::optional<int> error;  // nothing: it has not come yet
  };
  struct Asking {
    std::shared_ptr<InlineAnswer> inline_answer;  // of the one under way, if it has bytes
    uint64_t begun = 0;
    uint64_t ended = 0;
    int error = 0;  // of the last answer
    std::vector<Waiter> waiting;
    bool is_under_way() const noexcept { return begun != ended; }
  };
  std::vector<Waiter> take_asking() { return std::exchange(asking.waiting, {}); }
  Asking asking;
  // WRITEs that saw their lease and have not noted yet what they wrote, and who waits for their
  // end.
  uint32_t writing = 0;
  std::vector<std::shared_ptr<Operation>> writing_waiters;

  // ---- errors, the first kept and reported once to each handle: LOCKED ----
  void fail(int error) noexcept;
  int report(uint64_t& seen) noexcept;
  uint64_t error_seen_at_open() const noexcept;

  // ---- lifetime: LOCKED ----
  uint32_t handles = 0;
  // Why lanes may open it for reading by themselves, as long as its bytes are leased; handles that
  // they opened so.
  LocalOpen local_open = LocalOpen::kNone;
  uint32_t local_handles = 0;
  uint64_t kept_bytes = 0;  // of its view, as long as Python keeps it
  // With its first OPEN, which is not answered yet: the kernel's pages may be of before.
  bool is_fetching = false;
  // A file whose READs are counted until its next close (prefetch/whole_small_files.h).
  bool is_probe = false;
  uint64_t probed_bytes = 0;
  Lifetime lifetime = Lifetime::kKnown;
  // Whether Python needs the entry no more. One that is out of the table stays so.
  void set_dropped(bool is_dropped) noexcept {
    if (lifetime != Lifetime::kGone) lifetime = is_dropped ? Lifetime::kDropped : Lifetime::kKnown;
  }
  bool busy() const noexcept;
  // Lanes have ended. An operation holds the inode that it waits for, so each that is left in a
  // list here would keep both for ever. The caller lets go of what is returned without the mutex.
  std::vector<std::shared_ptr<void>> take_waiters();
  bool watched = false;         // a lane looks after the age of its pieces
  bool sync_watched = false;    // a lane will sync it after a while
  bool tells_synced = false;    // Python is told (SYNCED) when is_synced()
  uint64_t synced_stripes = 0;  // by that, of this file id, and not told to the metaserver
  // Where the first page ends that a READ filled with zeros behind the file's end, since a direct
  // write last grew the file: such writes go past the kernel's pages.
  static constexpr uint64_t kNotCut = ~uint64_t{0};
  uint64_t cut_end = kNotCut;
  // READs under way that may end behind the file's end, by their offsets, and those of them that
  // found nothing: Linux believes the first short answer of several, so the one that has the file's
  // end comes first.
  std::vector<uint64_t> near_end;
  std::vector<std::shared_ptr<Operation>> behind_end;  // bounded by what the kernel has under way
  // Pages that READs filled since a handle that writes past them was opened, as one range. The
  // kernel drops those in the way of such a write before it sends it, and not again: one that was
  // filled in between has bytes of before, and is to be invalidated before the writer is answered.
  // (Zeros behind the file's end are cut_end's.)
  uint32_t past_pages = 0;  // such handles
  struct Filled {
    uint64_t begin = ~uint64_t{0};
    uint64_t end = 0;
  };
  Filled filled{};
  void note_filled(uint64_t begin, uint64_t end) noexcept {
    if (past_pages != 0) filled = {std::min(filled.begin, begin), std::max(filled.end, end)};
  }
  // A write past them, of these bytes: whether some of them may be in such pages.
  bool takes_filled(uint64_t begin, uint64_t end) noexcept {
    if (begin >= filled.end || end <= filled.begin) return false;
    if (begin <= filled.begin && filled.end <= end) {
      filled = {};
    } else if (begin <= filled.begin) {
      filled.begin = end;
    } else if (filled.end <= end) {
      filled.end = begin;
    }
    return true;
  }
  uint64_t stream_end = ~uint64_t{0};  // where the last write ended: tells sequential ones
  SideBySide side_by_side;

  std::atomic<int64_t> reopen_asked_ms = 0;
  std::atomic<bool> reopen_writable = false;  // the next REOPEN is to ask for the right to write
  // How far quotas let the file grow, as the metaserver said last (Python's size_limit). A WRITE
  // beyond asks again before it is refused.
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  std::atomic<uint64_t> size_limit = kUnlimited;

 private:
  bool is_unreported() const noexcept {
    return inlining == Inlining::kPossible || inlining == Inlining::kHandingOver;
  }
  void other_objects(Actions& actions);         // LOCKED
  void cut_ended(int error, Actions& actions);  // LOCKED
  // LOCKED: a view of the same objects as they were before what is known. (Of one epoch the last
  // one received counts.)
  bool is_older(const FileView& view) const noexcept {
    return view_ && view_->file_id == view.file_id && view.truncate_epoch < view_->truncate_epoch;
  }
  void note_stamp(const Attributes& known);    // LOCKED
  void note_size(uint64_t recorded) noexcept;  // LOCKED

  const uint64_t ino_;
  std::mutex mu_;
  FileViewPtr view_;
  uint64_t size_ = 0;
  uint64_t stored_end_ = 0;  // neither targets nor the metaserver know of anything behind it
  uint64_t change_version_ = 0;
  uint64_t data_version_ = 0;
  uint64_t stamp_ = 0;
  uint64_t record_stamp_ = 0;
  bool immutable_ = false;
  uint64_t stamped_from_ = 0;  // the first data version that has a stamp
  PieceTable pieces_;
  static constexpr auto kDropAgain = std::chrono::seconds(2);
  struct Drop {
    Replica replica;
    Clock::time_point again;  // it may be told again from then on
  };
  std::vector<Drop> drops_;
  Written written_{};
  int error_ = 0;
  uint64_t error_generation_ = 0;
  bool error_reported_ = true;
};

using InodePtr = std::shared_ptr<Inode>;

}  // namespace braidfs::client
