#include "client/pieces.h"

#include <algorithm>
#include <cerrno>

#include "client/context.h"
#include "client/lanes.h"

namespace braidfs::client {

namespace {

constexpr uint32_t kSendsMax = 64;  // of one piece in a row: then its target contradicts itself

// Calls fn(span) for each WRITE that the piece needs. While it is in flight, neither its gaps nor
// its ends change.
template <typename Fn>
void each_span(const Piece& piece, const FileView& view, Fn fn) {
  uint64_t at = piece.begin;
  for (size_t part = 0; part <= piece.gaps.size(); ++part) {
    const uint64_t end = part < piece.gaps.size() ? piece.gaps[part].begin : piece.end;
    while (at < end) {
      const Span span = first_span(view, at, end);
      fn(span);
      at += span.length;
    }
    if (part < piece.gaps.size()) at = piece.gaps[part].end;
  }
}

// Decides under one lock where the piece goes and whether it still goes: since it became in flight,
// it may have been given up, or its inode may have got another view. nullptr: it does not go.
FileViewPtr take_for_sending(Inode& inode, Piece& piece) {
  const std::scoped_lock lock(inode.mu());
  // Whoever gave the piece up has answered its waiter.
  if (piece.state != PieceState::kInFlight) return nullptr;
  piece.calls_ended();  // bytes that were cut off meanwhile would come back under the new view
  inode.sends_until(piece.end);
  const FileViewPtr view = inode.view_locked();
  piece.stripe_index = first_span(*view, piece.begin, piece.end).stripe_index;
  piece.aim(*view);
  piece.is_sent = true;
  ++piece.sends;
  return view;
}

// Hashes a piece once for all of its replicas.
void hash_piece(Piece& piece, const FileView& view) {
  size_t count = 0;
  each_span(piece, view,
            [&](const Span& span) { count += blocks_touched(span.object_offset, span.length); });
  piece.sums.resize(count);
  auto place = std::span(piece.sums);
  each_span(piece, view, [&](const Span& span) {
    const size_t blocks = blocks_touched(span.object_offset, span.length);
    hash_blocks(span.object_offset, piece.bytes(span.begin, span.begin + span.length),
                place.first(blocks));
    place = place.subspan(blocks);
  });
}

struct Part {
  const Span& span;
  std::span<const uint64_t> sums;
  uint32_t replica;  // of SendOutcome::to()
};

void send_part(Lane& lane, const InodePtr& inode, const PiecePtr& piece, const FileViewPtr& view,
               const Part& part) {
  Call* call = lane.make_call();
  call->op = Op::kWrite;
  call->aim(view, part.span.stripe_index, piece->outcome.ones[part.replica].replica);
  call->offset = part.span.object_offset;
  call->length = part.span.length;
  call->payload = piece->bytes(part.span.begin, part.span.begin + part.span.length);
  call->sums = part.sums;
  call->inode = inode;
  call->owner = piece;
  call->part = part.replica;
  call->behind = !piece->waiter;
  lane.counters().bytes_sent += part.span.length;
  lane.submit(call);
}

void round_ended(Lane& lane, const InodePtr& inode, const PiecePtr& piece);

void send_piece(Lane& lane, const InodePtr& inode, const PiecePtr& piece) {
  const FileViewPtr view = take_for_sending(*inode, *piece);
  if (!view) return;
  const uint32_t count = piece->outcome.count;
  if (count == 0) return round_ended(lane, inode, piece);  // who lacked it is not in the view now
  each_span(*piece, *view, [&](const Span&) { piece->outcome.calls += count; });
  if (count > 1) hash_piece(*piece, *view);
  auto sums = std::span<const uint64_t>(piece->sums).first(count > 1 ? piece->sums.size() : 0);
  each_span(*piece, *view, [&](const Span& span) {
    const size_t blocks = sums.empty() ? 0 : blocks_touched(span.object_offset, span.length);
    for (uint32_t replica = 0; replica < count; ++replica)
      send_part(lane, inode, piece, view, {span, sums.first(blocks), replica});
    sums = sums.subspan(blocks);
  });
}

// Notes how a call ended. An error outweighs a stale epoch, after which the piece is sent again.
void note(SendOutcome& outcome, const Call& call) {
  --outcome.calls;
  SendOutcome::One& one = outcome.ones[call.part];
  if (call.status == Status::kOk) {
    const bool first = one.incarnation == 0;
    one.incarnation = first ? call.incarnation : std::min(one.incarnation, call.incarnation);
    return;
  }
  one.is_refused = true;
  if (outcome.status == Status::kOk || outcome.status == Status::kStaleTruncateEpoch) {
    outcome.status = call.status;
    outcome.refusal = call.refusal != Status::kOk ? call.refusal : call.status;
    outcome.target = call.replica.target;
  }
}

// Notes which replicas have acknowledged a piece. False: a target has lost it since. LOCKED inode.
bool note_acknowledged(Context& context, Piece& piece) {
  for (const SendOutcome::One& one : piece.outcome.to()) {
    if (!one.is_refused) piece.acknowledged.note(one.replica, one.incarnation);
  }
  return piece.acknowledged.forget_if([&](const Acknowledged::One& one) {
    return one.incarnation < context.incarnations().newest(one.replica.target);
  }) == 0;
}

// A replica of the present view lacks the piece. LOCKED inode.
bool is_lacking(const Inode& inode, const Piece& piece) {
  const FileView& view = *inode.view_locked();
  return view.is_replicated && view.file_id == piece.file_id &&
         !piece.acknowledged.by_all(view.replicas(piece.stripe_index));
}

// A target without room has refused what other replicas have: then they differ, and it is dropped.
// LOCKED inode.
void drop_differing(Context& context, Inode& inode, Piece& piece) {
  if (piece.acknowledged.all().empty()) return;
  for (const SendOutcome::One& one : piece.outcome.to()) {
    if (!one.is_refused) continue;
    const auto now = Clock::now();
    auto event = inode.drop_replicas(one.replica.target, one.replica.object_number, now);
    if (event) context.events().put(std::move(*event));
  }
}

// Decides what the end of its WRITEs means for a piece, and returns the errno for its waiter.
// LOCKED inode.
int conclude(Context& context, Inode& inode, const PiecePtr& piece, Actions& actions) {
  const Status status = piece->outcome.status;
  piece->is_sent = false;
  const bool is_there = note_acknowledged(context, *piece);
  if (piece->state == PieceState::kGone && status == Status::kOk) return 0;
  // A target has lost the piece, or its WRITEs were of another epoch, object or view than the inode
  // has now.
  const bool is_lost = status == Status::kOk && (!is_there || is_lacking(inode, *piece));
  const bool is_stale =
      status == Status::kStaleTruncateEpoch && piece->state == PieceState::kInFlight;
  if ((is_lost || is_stale) && piece->sends < kSendsMax) {
    inode.pieces().send_again(piece, actions);
    return 0;
  }
  if (status == Status::kOk && !is_lost) {
    inode.pieces().acknowledged(piece, actions);
    return 0;
  }
  if (!is_lost) drop_differing(context, inode, *piece);
  const int error = is_lost ? EIO : errno_of(status);
  if (!piece->waiter) {
    if (piece->state == PieceState::kGone)
      return 0;  // it was given up (Inode::lose has reported that), or cut off
    inode.fail(error);
  }
  inode.pieces().refused(piece, actions);
  return error;
}

// All calls of a piece have ended.
void round_ended(Lane& lane, const InodePtr& inode, const PiecePtr& piece) {
  const Status status = piece->outcome.status;
  const Status refusal = piece->outcome.refusal;
  const uint32_t target = piece->outcome.target;
  Context& context = lane.context();
  Actions actions;
  std::shared_ptr<PieceWaiter> told;
  int error;
  bool watch;
  {
    const std::scoped_lock lock(inode->mu());
    error = conclude(context, *inode, piece, actions);
    if (!piece->unacknowledged()) told = std::exchange(piece->waiter, nullptr);
    watch = !inode->sync_watched && inode->pieces().unsynced();
    if (watch) inode->sync_watched = true;
  }
  if (error == ENOSPC) context.memory().no_room(lane.loop().now());
  if (error != 0 && !told) {
    context.events().log(LogLevel::kError, inode->ino(),
                         "written bytes were lost: status " +
                             std::to_string(static_cast<int>(refusal)) + " from target " +
                             std::to_string(target));
    if (inode->loss_logged)
      context.kernel().invalidate_pages(inode->ino(), piece->begin, piece->end - piece->begin);
  }
  if (status == Status::kOk) context.memory().hold(inode, piece);
  if (watch) lane.sync_later(inode);
  if (told) told->piece_done(lane, error);
  run_actions(lane, inode, actions);
  context.memory().evict(context.inodes());
}

// Reports a cut of the file to the metaserver, if there is one and no report is under way.
void report_cut(Inode& inode, EventQueue& events) {
  std::optional<Event> event;
  {
    const std::scoped_lock lock(inode.mu());
    event = inode.report_cut();
  }
  if (event) events.put(std::move(*event));
}

}  // namespace

void Piece::call_done(Lane& lane, Call& call) {
  note(outcome, call);
  if (outcome.calls == 0) round_ended(lane, call.inode, shared_from_this());
}

void run_actions(Lane& lane, const InodePtr& inode, Actions& actions) {
  if (actions.report_cut) report_cut(*inode, lane.context().events());
  for (const auto& waiter : actions.given_up) waiter->piece_done(lane, actions.given_up_error);
  for (const PiecePtr& piece : actions.send) send_piece(lane, inode, piece);
  proceed_all(lane, actions.proceed);
}

bool send_aged(Lane& lane, const InodePtr& inode, Clock::time_point now) {
  Actions actions;
  bool all;
  {
    const std::scoped_lock lock(inode->mu());
    all = inode->pieces().seal_aged(now, actions);
    const Cuts& cuts = inode->cuts;
    actions.report_cut |= cuts.pending != Cuts::kNone && now >= cuts.due;
    all = all && (cuts.pending == Cuts::kNone || now >= cuts.due);
    if (all) inode->watched = false;
  }
  run_actions(lane, inode, actions);
  if (all) lane.context().inodes().idle(inode);
  return all;
}

void send_partial(Lane& lane, const InodePtr& inode) {
  Actions actions;
  {
    const std::scoped_lock lock(inode->mu());
    inode->pieces().seal_all(actions);
  }
  run_actions(lane, inode, actions);
}

// All lost pieces are queued again before Incarnations::losses() rises.
void resend_lost(Lane& lane, uint32_t target, uint64_t incarnation) {
  lane.log(LogLevel::kWarning, "target " + std::to_string(target) +
                                   " lost what was not synced; sending again what is held");
  for (const InodePtr& inode : lane.context().inodes().all()) {
    auto actions = std::make_shared<Actions>();
    {
      const std::scoped_lock lock(inode->mu());
      inode->pieces().target_lost(target, incarnation, *actions);
    }
    if (actions->empty()) continue;
    lane.loop().defer([&lane, inode, actions] { run_actions(lane, inode, *actions); });
  }
}

Inode::Loss lose(Context& context, const InodePtr& inode) {
  auto actions = std::make_shared<Actions>();
  const Inode::Loss loss = inode->lose(*actions);
  if (!actions->empty()) {
    context.lanes().of(inode->ino()).post([inode, actions](Lane& at) {
      run_actions(at, inode, *actions);
    });
  }
  context.inodes().idle(inode);
  return loss;
}

}  // namespace braidfs::client
