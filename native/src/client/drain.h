// FLUSH, FSYNC, RELEASE, the end of an O_SYNC write, Python's drain(), and the sync that follows
// some seconds after bytes that nobody synced (else held bytes would stay, and a host that loses
// power would lose what was written long ago). Written bytes go to the targets, their objects are
// synced if the bytes must be durable, and then size and time are committed.
//
// Phases:
// - cut: the metaserver is told where lanes have cut the file (cuts.h); until this operation has
//   ended they cut it no more;
// - inline: the bytes of a new, small file go to the metaserver instead of to targets, in the
//   payload of a COMMIT event (docs/decisions/0037-inline-data.md);
// - drain: it seals all pieces, waits until those up to now are acknowledged, and takes what is to
//   be synced under the same lock, since a loss that another lane sees may change that at any time;
// - sync: one SYNC for each object that was written since its last one, in parallel; a target that
//   has lost bytes sends the operation back to drain. A replica that lost bytes which are not held
//   any more is dropped, unless it is the last one: then they are lost;
// - commit: a COMMIT event, which Python answers by commit_done; it goes beside the SYNCs if the
//   size and the set of durable objects stay as they are.
// Invariant: the request is answered once; an interrupted operation goes on without an answer.
// Threads: one at a time, the lane that let it proceed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/inode.h"
#include "client/lane.h"
#include "client/tables.h"

namespace braidfs::client {

class DrainOperation final : public Operation {
 public:
  enum class Kind : uint8_t { kFlush, kFsync, kRelease, kWrite, kToken, kBackground };

  static void for_flush(Lane& lane, const fuse::RequestHead& head, HandlePtr handle);
  static void for_fsync(Lane& lane, const fuse::RequestHead& head, HandlePtr handle);
  static void for_release(Lane& lane, const fuse::RequestHead& head, HandlePtr handle);
  struct Wrote {
    uint32_t count;  // bytes to be reported
    bool durable;    // else it is enough that the metaserver knows the size
  };
  static void for_write(Lane& lane, const fuse::RequestHead& head, HandlePtr handle, Wrote wrote);
  // → DONE(token)
  struct Wanted {
    bool sync;
    bool commit;
  };
  static void for_token(Lane& lane, uint64_t token, InodePtr inode, Wanted wanted);
  // Nobody is answered: what fails is tried again later, and a loss becomes the inode's error.
  static void for_background(Lane& lane, InodePtr inode);

  DrainOperation(Kind kind, const fuse::RequestHead& head, HandlePtr handle, InodePtr inode);
  void proceed(Lane& lane) override;
  void call_done(Lane& lane, Call& call) override;
  // Python's answer to the COMMIT event.
  void commit_answered(Lane& lane, Status status, const std::optional<Attributes>& attributes);
  uint32_t lane_index() const noexcept { return lane_index_; }

 private:
  enum class Phase : uint8_t { kCut, kInline, kDrain, kSync, kCommit };
  struct Sync {
    uint32_t stripe_index;
    Replica replica;
    uint64_t incarnation;
  };
  // Of a replicated file: in which incarnation a target has acknowledged what is not synced.
  struct Acknowledged {
    uint32_t target;
    uint64_t incarnation;
  };
  static constexpr uint32_t kRoundsMax = 16;
  static constexpr uint32_t kReplicatedRoundsMax = 64;  // most of them rest until the view changes

  void begin(Lane& lane);
  void report_cut(Lane& lane);
  void drain(Lane& lane);
  bool is_last_of_lease(Context& context) const;
  void sync(Lane& lane);
  void take_view();
  void take_syncs();
  bool may_commit_beside() const;
  void ask_sync(Lane& lane, const Sync& sync);
  void note_synced(Lane& lane, const Call& call, Actions& actions);
  void note_synced_stripes();
  void lost(Lane& lane, const Sync& sync, uint64_t incarnation);
  void synced(Lane& lane);
  bool goes_again(Lane& lane);
  void commit(Lane& lane);
  std::vector<std::shared_ptr<Operation>> committed_with_birth(Lane& lane);
  bool take_inline(Context& context, bool& with_birth);
  void hand_over(Lane& lane);
  void handed_over(Lane& lane, bool taken);
  void take_commit();
  void take_acknowledged();
  void send_commit(Lane& lane);
  void advance(Lane& lane);
  void finish(Lane& lane);
  void finish_background(Lane& lane);
  void tell_synced(Lane& lane);
  void conclude(Lane& lane, int error);
  void answer(Lane& lane, int error);
  bool durable() const noexcept { return durable_; }
  bool is_request() const noexcept { return kind_ != Kind::kToken && kind_ != Kind::kBackground; }
  void refused(int error);

  const Kind kind_;
  bool durable_ = false;
  bool commits_ = true;
  HandlePtr handle_;
  InodePtr inode_;
  FileViewPtr view_;
  uint64_t token_ = 0;
  uint32_t count_ = 0;  // kWrite: bytes to be reported
  uint32_t lane_index_ = 0;

  Phase phase_ = Phase::kCut;
  CutWait cut_wait_;
  std::string bytes_;  // that are handed over
  uint64_t sequence_ = 0;
  bool sealed_ = false;
  uint32_t rounds_ = 0;
  std::vector<Sync> syncs_;
  uint64_t acknowledgements_ = 0;  // that they make durable
  uint32_t pending_ = 0;           // SYNC calls, and the commit beside them
  uint64_t synced_stripes_ = 0;
  std::vector<Sync> done_;      // those that succeeded, in any round
  uint64_t unsynced_some_ = 0;  // of these stripes a replica was not synced, in this round
  bool again_ = false;
  bool rests_ = false;   // before the next round: the view has to change first
  bool checks_ = false;  // the metaserver says that a target has lost what it acknowledged
  std::vector<Acknowledged> acknowledged_;
  bool commit_beside_ = false;
  bool committed_ = false;
  Written taken_{};
  uint32_t lost_count_ = 0;  // of the inode, when that was taken
  int error_ = 0;
};

}  // namespace braidfs::client
