#include "client/drain.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "client/context.h"
#include "client/lanes.h"
#include "client/pieces.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;

constexpr uint64_t kEverything = ~uint64_t{0};
constexpr auto kRestMin = milliseconds(10);
constexpr auto kRestMax = milliseconds(1000);
constexpr uint32_t kFailedSyncRest =
    12;  // a failed sync is tried again after so many usual intervals

struct CommitHead {
  uint64_t file_id;
  uint32_t flags;
  uint16_t durable;
  uint16_t acknowledged;  // so many rows of a target and its incarnation follow
  uint64_t stripes;
};
static_assert(sizeof(CommitHead) == 24);

template <typename T>
void append(std::string& payload, const T& value) {
  payload.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The metaserver could not be told where the file was cut: the cut is lost when the last handle of
// the file is closed.
void lose_last(Context& context, const InodePtr& inode) {
  if (OpenFiles::is_last(*inode)) lose(context, inode);
}

}  // namespace

DrainOperation::DrainOperation(Kind kind, const fuse::RequestHead& head, HandlePtr handle,
                               InodePtr inode)
    : kind_(kind), handle_(std::move(handle)), inode_(std::move(inode)) {
  durable_ = kind == Kind::kFsync || kind == Kind::kWrite;
  rearm(head);
}

void DrainOperation::for_flush(Lane& lane, const fuse::RequestHead& head, HandlePtr handle) {
  const InodePtr inode = handle->inode;
  std::make_shared<DrainOperation>(Kind::kFlush, head, std::move(handle), inode)->begin(lane);
}

void DrainOperation::for_fsync(Lane& lane, const fuse::RequestHead& head, HandlePtr handle) {
  const InodePtr inode = handle->inode;
  std::make_shared<DrainOperation>(Kind::kFsync, head, std::move(handle), inode)->begin(lane);
}

void DrainOperation::for_release(Lane& lane, const fuse::RequestHead& head, HandlePtr handle) {
  const InodePtr inode = handle->inode;
  std::make_shared<DrainOperation>(Kind::kRelease, head, std::move(handle), inode)->begin(lane);
}

void DrainOperation::for_write(Lane& lane, const fuse::RequestHead& head, HandlePtr handle,
                               Wrote wrote) {
  const InodePtr inode = handle->inode;
  auto operation = std::make_shared<DrainOperation>(Kind::kWrite, head, std::move(handle), inode);
  operation->count_ = wrote.count;
  operation->durable_ = wrote.durable;
  operation->begin(lane);
}

void DrainOperation::for_token(Lane& lane, uint64_t token, InodePtr inode, Wanted wanted) {
  auto operation = std::make_shared<DrainOperation>(Kind::kToken, fuse::RequestHead{}, nullptr,
                                                    std::move(inode));
  operation->token_ = token;
  operation->durable_ = wanted.sync;
  operation->commits_ = wanted.commit;
  operation->begin(lane);
}

void DrainOperation::for_background(Lane& lane, InodePtr inode) {
  auto operation = std::make_shared<DrainOperation>(Kind::kBackground, fuse::RequestHead{}, nullptr,
                                                    std::move(inode));
  operation->durable_ = true;
  operation->commits_ = false;
  operation->phase_ = Phase::kSync;
  operation->begin(lane);
}

void DrainOperation::begin(Lane& lane) {
  if (is_request()) lane.context().waiting().put(head().unique, shared_from_this());
  if (kind_ != Kind::kBackground) {
    const std::scoped_lock lock(inode_->mu());
    ++inode_->cuts.pauses;
  }
  proceed(lane);
}

void DrainOperation::proceed(Lane& lane) {
  lane_index_ = lane.index();
  switch (phase_) {
    case Phase::kCut:
      return report_cut(lane);
    case Phase::kInline:
      return hand_over(lane);
    case Phase::kDrain:
      return drain(lane);
    case Phase::kSync:
      return sync(lane);
    case Phase::kCommit:
      return commit(lane);
  }
}

// ---- cut ----

void DrainOperation::report_cut(Lane& lane) {
  std::optional<Event> event;
  bool waits;
  {
    const std::scoped_lock lock(inode_->mu());
    waits = cut_wait_.wait(*inode_, shared_from_this(), event, error_);
  }
  if (event) lane.context().events().put(std::move(*event));
  if (waits) return;
  if (error_ != 0) return finish(lane);
  const bool is_of_handle =
      kind_ == Kind::kFlush || kind_ == Kind::kFsync || kind_ == Kind::kRelease;
  phase_ = is_of_handle ? Phase::kInline : Phase::kDrain;
  proceed(lane);
}

// ---- inline: bytes that go to the metaserver with the created file ----

// True: the phase has begun, and nobody else commits. `with_birth`: the metaserver need not be
// asked.
bool DrainOperation::take_inline(Context& context, bool& with_birth) {
  const std::scoped_lock lock(inode_->mu());
  if (!inode_->may_lie_inline(context.commits().inline_length_max()) ||
      !context.leases().holds(*inode_, kLeaseDataExclusive)) {
    return false;
  }
  inode_->inlining = Inlining::kHandingOver;
  sequence_ = inode_->pieces().sequence();
  const PiecePtr piece = inode_->pieces().only_filling(inode_->size());
  const auto bytes = piece->bytes(piece->begin, piece->end);
  bytes_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  with_birth = inode_->commit_with_birth();
  if (with_birth) inode_->birth.since.inline_bytes = bytes_;
  if (!with_birth) take_commit();
  view_ = inode_->view_locked();
  return true;
}

void DrainOperation::hand_over(Lane& lane) {
  bool with_birth = false;
  if (!take_inline(lane.context(), with_birth)) {
    phase_ = Phase::kDrain;
    return proceed(lane);
  }
  if (!with_birth) return send_commit(lane);
  const auto waiters = committed_with_birth(lane);
  handed_over(lane, true);
  proceed_all(lane, waiters);
}

// `taken`: the metaserver has stored the bytes in the record. No WRITE has come meanwhile, since a
// WRITE has to ask first. The piece is dropped; if somebody has sealed it, it goes to the targets
// as well, where nobody reads it.
void DrainOperation::handed_over(Lane& lane, bool taken) {
  Actions actions;
  {
    const std::scoped_lock lock(inode_->mu());
    inode_->inlining = Inlining::kNo;
    PieceTable& pieces = inode_->pieces();
    const bool is_alone =
        pieces.sequence() == sequence_ && pieces.only_filling(bytes_.size()) != nullptr;
    if (taken && is_alone) pieces.trim(0, actions);
    if (taken) inode_->lies_inline(view_, std::move(bytes_));
  }
  bytes_.clear();
  if (taken) lane.counters().inline_births.fetch_add(1, std::memory_order_relaxed);
  run_actions(lane, inode_, actions);
  phase_ = Phase::kDrain;
  committed_ = false;
  proceed(lane);
}

void DrainOperation::drain(Lane& lane) {
  Actions actions;
  bool done;
  {
    const std::scoped_lock lock(inode_->mu());
    const bool is_last = is_last_of_lease(lane.context());
    if (is_last && inode_->writing != 0) {
      inode_->writing_waiters.push_back(shared_from_this());
      return;
    }
    PieceTable& pieces = inode_->pieces();
    if (!sealed_) {
      sealed_ = true;
      sequence_ = pieces.sequence();
      pieces.seal_all(actions);
    }
    take_view();
    done = pieces.is_acknowledged(sequence_, 0, kEverything);
    if (done && is_last) pieces.drop_all_held(actions);
    if (done && (durable_ || checks_)) take_syncs();
    if (!done) pieces.wait(shared_from_this(), sequence_, 0, kEverything);
  }
  run_actions(lane, inode_, actions);
  if (!done) return lane.context().lanes().hurry();
  phase_ = durable_ || checks_ ? Phase::kSync : Phase::kCommit;
  proceed(lane);
}

// Whether the lease is about to be returned, so that no WRITE may begin any more. It is not
// returned before the WRITEs that have begun are seen here. LOCKED inode.
bool DrainOperation::is_last_of_lease(Context& context) const {
  const bool may_begin = context.leases().holds(*inode_, kLeaseDataExclusive) ||
                         (inode_->recalling & kLeaseDataExclusive) != 0;
  return kind_ == Kind::kToken && !may_begin;
}

// ---- sync ----

// Takes the inode's view. If the file has other objects than before, the SYNCs of the former ones
// do not count. LOCKED inode.
void DrainOperation::take_view() {
  const FileViewPtr former = std::exchange(view_, inode_->view_locked());
  if (!former || former->file_id == view_->file_id) return;
  synced_stripes_ = 0;
  done_.clear();
}

// Takes what is to be synced, which is right only as long as every piece is acknowledged. LOCKED
// inode.
void DrainOperation::take_syncs() {
  syncs_.clear();
  take_view();
  acknowledgements_ = inode_->pieces().acknowledgements();
  const auto& objects = inode_->pieces().objects();
  for (uint32_t row = 0; row < objects.size(); ++row) {
    const ObjectState& one = objects[row];
    if (one.unsynced())
      syncs_.push_back({row / view_->places, one.replica, one.oldest_incarnation});
  }
  commit_beside_ = commits_ && !committed_ && !checks_ && !syncs_.empty() && may_commit_beside();
  if (commit_beside_) take_commit();
}

// True: the commit claims nothing that the SYNCs must prove first. LOCKED inode.
bool DrainOperation::may_commit_beside() const {
  const auto written = inode_->written();
  if (inode_->committing || (written && (written->flags & kCommitSize) != 0)) return false;
  const auto& objects = inode_->pieces().objects();
  for (uint32_t row = 0; row < objects.size(); ++row) {
    if (objects[row].unsynced() && !view_->is_durable(row / view_->places)) return false;
  }
  return true;
}

void DrainOperation::sync(Lane& lane) {
  if (kind_ == Kind::kBackground) {  // unacknowledged pieces are synced later
    const std::scoped_lock lock(inode_->mu());
    take_syncs();
  }
  again_ = rests_ = false;
  unsynced_some_ = 0;
  pending_ = 1;
  if (commit_beside_) {
    ++pending_;
    send_commit(lane);
  }
  for (uint32_t part = 0; part < syncs_.size(); ++part) {
    ++pending_;
    ask_sync(lane, syncs_[part]);
  }
  advance(lane);
}

void DrainOperation::ask_sync(Lane& lane, const Sync& sync) {
  Call* call = lane.make_call();
  call->op = Op::kSync;
  call->aim(view_, sync.stripe_index, sync.replica);
  call->offset = sync.incarnation;
  call->inode = inode_;
  call->owner = shared_from_this();
  call->part = static_cast<uint32_t>(&sync - syncs_.data());
  call->once = kind_ == Kind::kBackground;
  lane.submit(call);
}

void DrainOperation::call_done(Lane& lane, Call& call) {
  Actions actions;
  {
    const std::scoped_lock lock(inode_->mu());
    note_synced(lane, call, actions);
  }
  advance(lane);
}

// LOCKED inode.
void DrainOperation::note_synced(Lane& lane, const Call& call, Actions& actions) {
  const Sync& sync = syncs_[call.part];
  const uint64_t bit = uint64_t{1} << sync.stripe_index;
  PieceTable& pieces = inode_->pieces();
  if (call.status == Status::kOk && call.incarnation == sync.incarnation) {
    pieces.synced(sync.stripe_index, sync.replica, acknowledgements_, actions);
    if (call.view->file_id == view_->file_id) done_.push_back(sync);
    return;
  }
  unsynced_some_ |= bit;
  if (call.status == Status::kOk || call.status == Status::kStaleIncarnation) {
    again_ = true;  // the lane queued the held pieces again when it saw the reply
    lost(lane, sync, call.incarnation);
  } else if (call.status == Status::kStaleTruncateEpoch) {
    again_ = true;
  } else if (call.status == Status::kNoObject && kind_ == Kind::kBackground) {
    pieces.synced(sync.stripe_index, sync.replica, acknowledgements_,
                  actions);  // the object was removed
  } else {
    refused(errno_of(call.status));
  }
}

// A target may have lost bytes that cannot be sent again. If another replica has them, this one is
// dropped. LOCKED inode.
void DrainOperation::lost(Lane& lane, const Sync& sync, uint64_t incarnation) {
  PieceTable& pieces = inode_->pieces();
  if (!pieces.has_loss(sync.stripe_index, sync.replica, incarnation)) return;
  const FileView& view = *inode_->view_locked();
  if (!view.has(sync.stripe_index, sync.replica) ||
      !pieces.another_has_it(sync.stripe_index, sync.replica)) {
    pieces.forget_loss(sync.stripe_index, sync.replica, incarnation);
    inode_->fail(EIO);
    return;
  }
  rests_ = true;
  if (auto event =
          inode_->drop_replicas(sync.replica.target, sync.replica.object_number, lane.loop().now()))
    lane.context().events().put(std::move(*event));
}

// A SYNC failed for good. In the background nothing is lost yet, since a later SYNC may succeed.
// LOCKED inode.
void DrainOperation::refused(int error) {
  error_ = error;
  if (kind_ != Kind::kBackground) inode_->fail(error);
}

void DrainOperation::advance(Lane& lane) {
  if (--pending_ > 0) return;
  if (phase_ == Phase::kSync) synced(lane);
}

void DrainOperation::synced(Lane& lane) {
  note_synced_stripes();
  if (again_ && kind_ == Kind::kBackground) return finish(lane);
  if (again_ && error_ == 0 && goes_again(lane)) return;
  if (!commits_ || committed_ || error_ != 0) return finish(lane);
  phase_ = Phase::kCommit;
  proceed(lane);
}

// A stripe is durable if those replicas are that it has by now. Another one that was synced before
// it was dropped does not count: what was left may have lost its bytes.
void DrainOperation::note_synced_stripes() {
  const auto view = inode_->view();
  for (const Sync& sync : done_) {
    if (view->is_replicated && !view->has(sync.stripe_index, sync.replica)) continue;
    synced_stripes_ |= (uint64_t{1} << sync.stripe_index) & ~unsynced_some_;
  }
}

// Begins another round, maybe after a rest. False: there were too many.
bool DrainOperation::goes_again(Lane& lane) {
  const uint32_t rounds_max = view_->is_replicated ? kReplicatedRoundsMax : kRoundsMax;
  phase_ = Phase::kDrain;
  sealed_ = false;
  if (++rounds_ > rounds_max) {
    error_ = EIO;
    return false;
  }
  if (!rests_) {
    proceed(lane);
    return true;
  }
  const auto rest = std::min(kRestMin * (1u << std::min(rounds_, 10u)), kRestMax);
  lane.loop().call_at(lane.loop().now() + rest,
                      [self = shared_from_this(), &lane] { self->proceed(lane); });
  return true;
}

// ---- commit ----

void DrainOperation::commit(Lane& lane) {
  bool with_birth = false;
  {
    const std::scoped_lock lock(inode_->mu());
    if (commits_ && inode_->committing) {  // another drain commits, maybe what this one needs
      inode_->commit_waiters.push_back(shared_from_this());
      return;
    }
    commits_ = commits_ && (durable_ || inode_->written());
    const bool is_close = kind_ == Kind::kFlush || kind_ == Kind::kRelease;
    if (commits_ && is_close) with_birth = inode_->commit_with_birth();
    if (commits_ && !with_birth) take_commit();
  }
  if (with_birth) {
    const auto waiters = committed_with_birth(lane);
    finish(lane);
    proceed_all(lane, waiters);
    return;
  }
  if (!commits_) return finish(lane);
  pending_ = 1;
  send_commit(lane);
}

// The size and time go with the created file, so the metaserver is not asked. But GETATTR must not
// look at the tables of attributes before they have them, too. Returns the operations that waited
// for that.
std::vector<std::shared_ptr<Operation>> DrainOperation::committed_with_birth(Lane& lane) {
  lane.context().commits().note_written(*inode_);
  lane.counters().commits_with_births.fetch_add(1, std::memory_order_relaxed);
  const std::scoped_lock lock(inode_->mu());
  inode_->committing = false;
  return std::exchange(inode_->commit_waiters, {});
}

// The caller has seen under the same lock that nobody else commits. Of two commits at once, one
// would end with nothing taken, before the other has told the metaserver what both were for. LOCKED
// inode.
void DrainOperation::take_commit() {
  inode_->committing = true;
  taken_ = inode_->take_written().value_or(Written{});
  inode_->in_commit = taken_;
  lost_count_ = inode_->lost_count;
  take_view();
  if (view_->is_replicated) take_acknowledged();
  if (durable_ && bytes_.empty()) synced_stripes_ |= std::exchange(inode_->synced_stripes, 0);
}

// LOCKED inode.
void DrainOperation::take_acknowledged() {
  acknowledged_.clear();
  for (const ObjectState& one : inode_->pieces().objects()) {
    if (!one.unsynced()) continue;
    const auto known = std::ranges::find(acknowledged_, one.replica.target, &Acknowledged::target);
    if (known == acknowledged_.end()) {
      acknowledged_.push_back({one.replica.target, one.oldest_incarnation});
    } else {
      known->incarnation = std::min(known->incarnation, one.oldest_incarnation);
    }
  }
}

void DrainOperation::send_commit(Lane& lane) {
  Event event{.kind = EventKind::kCommit, .ino = inode_->ino()};
  const uint32_t flags = taken_.flags | (synced_stripes_ != 0 ? kCommitSynced : 0);
  event.a = static_cast<int64_t>(taken_.size);
  event.b = taken_.mtime_ns;
  // If the commit has bytes, another one after it makes them durable.
  const uint16_t durable = durable_ && bytes_.empty() ? 1 : 0;
  append(event.payload, CommitHead{.file_id = view_->file_id,
                                   .flags = flags,
                                   .durable = durable,
                                   .acknowledged = static_cast<uint16_t>(acknowledged_.size()),
                                   .stripes = synced_stripes_});
  for (const Acknowledged& one : acknowledged_) {
    append(event.payload, one.target);
    append(event.payload, one.incarnation);
  }
  event.payload += bytes_;
  event.token =
      lane.context().commits().begin(std::static_pointer_cast<DrainOperation>(shared_from_this()));
  lane.context().events().put(std::move(event));
}

void DrainOperation::commit_answered(Lane& lane, Status status,
                                     const std::optional<Attributes>& attributes) {
  std::vector<std::shared_ptr<Operation>> waiters;
  // A target has lost what it acknowledged: SYNCs find out which one, and it is sent again.
  const bool repeats = status == Status::kStaleIncarnation && !acknowledged_.empty();
  checks_ = checks_ || repeats;
  {
    const std::scoped_lock lock(inode_->mu());
    inode_->committing = false;
    waiters.swap(inode_->commit_waiters);
    if (status == Status::kOk) {
      committed_ = true;
      inode_->mark_durable(view_->file_id, synced_stripes_);
      if (attributes) inode_->committed(*attributes);
    } else {
      if (phase_ != Phase::kInline && !repeats) error_ = errno_of(status);
      if (view_->file_id == inode_->view_locked()->file_id)
        inode_->synced_stripes |= synced_stripes_;
      if (inode_->lost_count == lost_count_) {
        inode_->give_back(taken_);
      } else if ((taken_.flags & kCommitSize) != 0) {
        inode_->fail(EIO);
      }
    }
  }
  if (phase_ == Phase::kSync) {
    again_ = again_ || repeats;
    advance(lane);
  } else if (repeats && goes_again(lane)) {
  } else if (phase_ == Phase::kInline) {
    handed_over(lane, status == Status::kOk);
  } else {
    finish(lane);
  }
  proceed_all(lane, waiters);
}

// ---- answer ----

// FLUSH reports an error, but does not use it up. The kernel also sends a FLUSH when a child that
// inherited the descriptor ends or execs, and nobody sees the answer to that.
void DrainOperation::finish(Lane& lane) {
  if (kind_ == Kind::kBackground) return finish_background(lane);
  if (!commits_ && synced_stripes_ != 0) {  // the next commit reports them
    const std::scoped_lock lock(inode_->mu());
    if (view_->file_id == inode_->view_locked()->file_id) inode_->synced_stripes |= synced_stripes_;
  }
  int error = error_;
  {
    const std::scoped_lock lock(inode_->mu());
    tell_synced(lane);
    --inode_->cuts.pauses;
    if (handle_ && kind_ != Kind::kRelease) {
      uint64_t only_told = handle_->error_seen;
      const int reported = inode_->report(kind_ == Kind::kFlush ? only_told : handle_->error_seen);
      if (error == 0) error = reported;
    }
  }
  if (kind_ == Kind::kRelease) {
    if (phase_ == Phase::kCut) lose_last(lane.context(), handle_->inode);
    lane.context().open_files().closed(*handle_);
  }
  if (error == 0 || !is_request() || !inode_->loss_logged) return conclude(lane, error);
  // An object of the file is lost. A program that was told so must not read the bytes that it wrote
  // there from the kernel's pages.
  auto self = std::static_pointer_cast<DrainOperation>(shared_from_this());
  lane.context().kernel().invalidate_pages(inode_->ino(), 0, 0, 0, [self, &lane, error] {
    lane.post([self, error](Lane& at) { self->conclude(at, error); });
  });
}

void DrainOperation::conclude(Lane& lane, int error) {
  answer(lane, error);
  lane.context().inodes().idle(inode_);
}

// Python waits for that since it closed the file. LOCKED inode.
void DrainOperation::tell_synced(Lane& lane) {
  if (!inode_->tells_synced || !inode_->is_synced()) return;
  inode_->tells_synced = false;
  lane.context().events().put({.kind = EventKind::kSynced, .ino = inode_->ino()});
}

void DrainOperation::finish_background(Lane& lane) {
  bool again;
  {
    const std::scoped_lock lock(inode_->mu());
    tell_synced(lane);
    if (view_->file_id == inode_->view_locked()->file_id) inode_->synced_stripes |= synced_stripes_;
    inode_->sync_watched = again = inode_->pieces().unsynced();
  }
  if (again && view_->is_replicated)  // a replica may have been dropped
    lane.context().events().put({.kind = EventKind::kReopen, .ino = inode_->ino()});
  if (again) lane.sync_later(inode_, error_ == 0 ? 1 : kFailedSyncRest);
  lane.background_synced();
  lane.context().inodes().idle(inode_);
}

void DrainOperation::answer(Lane& lane, int error) {
  Context& context = lane.context();
  if (kind_ == Kind::kToken) {
    context.events().put(
        {.kind = EventKind::kDone, .token = token_, .ino = inode_->ino(), .a = error});
    return;
  }
  context.waiting().drop(head().unique);
  if (!claim()) return;
  if (kind_ == Kind::kWrite && error == 0) {
    context.kernel().replier().reply_write(head().channel, head().unique, count_);
  } else {
    context.kernel().reply_error(head(), kind_ == Kind::kRelease ? 0 : error);
  }
}

}  // namespace braidfs::client
