#include "client/pieces.h"

#include <algorithm>
#include <cerrno>

#include "client/context.h"
#include "client/lanes.h"

namespace braidfs::client {

namespace {

constexpr uint32_t kSendsMax = 64;  // of one piece in a row: then its target contradicts itself

void send_part(Lane& lane, const InodePtr& inode, const PiecePtr& piece, const FileViewPtr& view,
               const Span& span) {
  Call* call = lane.make_call();
  call->op = Op::kWrite;
  call->target = view->targets[span.stripe_index];
  call->stripe_index = span.stripe_index;
  call->offset = span.object_offset;
  call->length = span.length;
  call->payload = piece->bytes(span.begin, span.begin + span.length);
  call->view = view;
  call->inode = inode;
  call->owner = piece;
  call->behind = !piece->waiter;
  lane.counters().bytes_sent += span.length;
  lane.submit(call);
}

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
  piece.target = view->targets[piece.stripe_index];
  piece.is_sent = true;
  ++piece.sends;
  return view;
}

void send_piece(Lane& lane, const InodePtr& inode, const PiecePtr& piece) {
  const FileViewPtr view = take_for_sending(*inode, *piece);
  if (!view) return;
  piece->outcome = {};
  each_span(*piece, *view, [&](const Span&) { ++piece->outcome.calls; });
  each_span(*piece, *view, [&](const Span& span) { send_part(lane, inode, piece, view, span); });
}

// Notes how a call ended. An error outweighs a stale epoch, after which the piece is sent again.
void note(SendOutcome& outcome, const Call& call) {
  --outcome.calls;
  if (call.status == Status::kOk) {
    const bool first = outcome.incarnation == 0;
    outcome.incarnation =
        first ? call.incarnation : std::min(outcome.incarnation, call.incarnation);
  } else if (outcome.status == Status::kOk || outcome.status == Status::kStaleTruncateEpoch) {
    outcome.status = call.status;
    outcome.refusal = call.refusal != Status::kOk ? call.refusal : call.status;
  }
}

// Decides what the end of its WRITEs means for a piece, and returns the errno for its waiter.
// LOCKED inode.
int conclude(Context& context, Inode& inode, const PiecePtr& piece, const Call& call,
             Actions& actions) {
  const SendOutcome& outcome = piece->outcome;
  piece->is_sent = false;
  if (piece->state == PieceState::kGone && outcome.status == Status::kOk) return 0;
  // The target has lost the piece, or its WRITEs were of another epoch or object than the inode has
  // now.
  const bool is_lost = outcome.status == Status::kOk &&
                       outcome.incarnation < context.incarnations().newest(call.target);
  const bool is_stale =
      outcome.status == Status::kStaleTruncateEpoch && piece->state == PieceState::kInFlight;
  if ((is_lost || is_stale) && piece->sends < kSendsMax) {
    inode.pieces().send_again(piece, actions);
    return 0;
  }
  if (outcome.status == Status::kOk && !is_lost) {
    inode.pieces().acknowledged(piece, outcome.incarnation, actions);
    return 0;
  }
  const int error = is_lost ? EIO : errno_of(outcome.status);
  if (!piece->waiter) {
    if (piece->state == PieceState::kGone)
      return 0;  // it was given up (Inode::lose has reported that), or cut off
    inode.fail(error);
  }
  inode.pieces().refused(piece, actions);
  return error;
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
  if (outcome.calls > 0) return;
  const SendOutcome ended = outcome;
  const InodePtr inode = call.inode;
  const PiecePtr self = shared_from_this();
  Context& context = lane.context();
  Actions actions;
  std::shared_ptr<PieceWaiter> told;
  int error;
  bool watch;
  {
    const std::scoped_lock lock(inode->mu());
    error = conclude(context, *inode, self, call, actions);
    if (!unacknowledged()) told = std::exchange(waiter, nullptr);
    watch = !inode->sync_watched && inode->pieces().unsynced();
    if (watch) inode->sync_watched = true;
  }
  if (error == ENOSPC) context.memory().no_room(lane.loop().now());
  if (error != 0 && !told) {
    context.events().log(LogLevel::kError, inode->ino(),
                         "written bytes were lost: status " +
                             std::to_string(static_cast<int>(ended.refusal)) + " from target " +
                             std::to_string(call.target));
    if (inode->loss_logged) context.kernel().invalidate_pages(inode->ino(), begin, end - begin);
  }
  if (ended.status == Status::kOk) context.memory().hold(inode, self);
  if (watch) lane.sync_later(inode);
  if (told) told->piece_done(lane, error);
  run_actions(lane, inode, actions);
  context.memory().evict(context.inodes());
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
