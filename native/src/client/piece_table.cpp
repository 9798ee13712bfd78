#include "client/piece_table.h"

#include <algorithm>

namespace braidfs::client {

namespace {

uint64_t oldest(uint64_t a, uint64_t b) noexcept {
  if (a == 0 || b == 0) return a | b;
  return std::min(a, b);
}

}  // namespace

// Calls fn(chunk, pieces) for the chunks that [begin, end) touches. A chunk whose `pieces` fn
// empties is forgotten.
template <typename Fn>
void PieceTable::each_chunk(uint64_t begin, uint64_t end, Fn fn) {
  if (begin >= end) return;
  const uint64_t last = (end - 1) / chunk_size_;
  auto at = chunks_.lower_bound(begin / chunk_size_);
  while (at != chunks_.end() && at->first <= last) {
    fn(at->first, at->second);
    at = at->second.empty() ? chunks_.erase(at) : std::next(at);
  }
}

// ---- the view ----

void PieceTable::see(const FileView& view, Actions& actions) {
  chunk_size_ = view.chunk_size;
  const auto is_known = [](const ObjectState& one, const Replica& replica) {
    return one.replica == replica;
  };
  if (places_ == view.places && std::ranges::equal(objects_, view.rows, is_known)) return;
  const std::vector<ObjectState> former = std::exchange(objects_, {});
  const uint32_t former_places = std::exchange(places_, view.places);
  for (const Replica& replica : view.rows)
    objects_.push_back(
        {.replica = replica, .synced = acknowledgements_, .since = acknowledgements_});
  for (size_t at = 0; at < objects_.size(); ++at) {
    const auto begin = std::min<size_t>(at / places_ * former_places, former.size());
    const auto end = std::min<size_t>(begin + former_places, former.size());
    for (const ObjectState& one : std::span(former).subspan(begin, end - begin)) {
      // Where nothing is replicated, the object of a stripe has no other name.
      const Replica replica = view.is_replicated ? one.replica : objects_[at].replica;
      if (replica != objects_[at].replica) continue;
      objects_[at] = one;
      objects_[at].replica = replica;
    }
  }
  drop_synced(actions);
}

std::span<ObjectState> PieceTable::objects_of(uint32_t stripe_index) noexcept {
  const size_t begin = std::min<size_t>(size_t{stripe_index} * places_, objects_.size());
  return std::span(objects_).subspan(begin, std::min<size_t>(places_, objects_.size() - begin));
}

// nullptr: it is not in the view.
ObjectState* PieceTable::object(uint32_t stripe_index, const Replica& replica) noexcept {
  for (ObjectState& one : objects_of(stripe_index)) {
    if (one.replica == replica) return &one;
  }
  return nullptr;
}

// ---- filling ----

PiecePtr PieceTable::mergeable(uint64_t chunk, uint64_t begin, uint64_t end) const {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return nullptr;
  const auto piece = std::ranges::find_if(
      found->second, [&](const PiecePtr& one) { return one->may_take(begin, end); });
  return piece == found->second.end() ? nullptr : *piece;
}

bool PieceTable::borders(const Piece& piece) const noexcept {
  const auto found = chunks_.find(piece.chunk);
  return found != chunks_.end() && std::ranges::any_of(found->second, [&](const PiecePtr& other) {
           return other->borders(piece.begin, piece.end);
         });
}

void PieceTable::merged(const PiecePtr& piece, uint64_t begin, uint64_t end, Actions& actions) {
  renumber(piece);
  piece->took(begin, end);
  ChunkPieces& pieces = chunks_[piece->chunk];
  seal_others(pieces, *piece, piece->begin, piece->end);
  send_ready(piece->chunk, actions);
  if (piece->is_full()) seal(piece, actions);
}

void PieceTable::add(const PiecePtr& piece, Actions& actions) {
  if (piece->coalesces) coalescing_.push_back(piece);
  ChunkPieces& pieces = chunks_[piece->chunk];
  seal_others(pieces, *piece, piece->begin, piece->end);
  piece->sequence = piece->since = ++sequence_;
  piece->state = PieceState::kFilling;
  unacknowledged_.insert(piece->since);
  dirty_bytes_ += piece->buffer.span().size();
  pieces.push_back(piece);
  send_ready(piece->chunk, actions);
  if (piece->is_full()) seal(piece, actions);
}

void PieceTable::make_way(uint64_t bytes_max, Actions& actions) {
  std::erase_if(coalescing_, [](const std::weak_ptr<Piece>& one) {
    const PiecePtr piece = one.lock();
    return !piece || piece->state != PieceState::kFilling;
  });
  while (!coalescing_.empty() && (coalescing_.size() + 1) * Memory::kPieceMax > bytes_max) {
    seal(coalescing_.front().lock(), actions);
    coalescing_.pop_front();
  }
}

void PieceTable::seal_others(const ChunkPieces& pieces, const Piece& except, uint64_t begin,
                             uint64_t end) {
  for (const PiecePtr& piece : pieces) {
    if (piece.get() == &except || piece->state != PieceState::kFilling) continue;
    if (piece->shares_block(begin, end)) set_state(piece, PieceState::kQueued);
  }
}

void PieceTable::seal(const PiecePtr& piece, Actions& actions) {
  if (piece->state != PieceState::kFilling) return;
  set_state(piece, PieceState::kQueued);
  send_ready(piece->chunk, actions);
}

void PieceTable::seal_range(uint64_t begin, uint64_t end, Actions& actions) {
  if (unacknowledged_.empty()) return;
  each_chunk(begin, end, [&](uint64_t chunk, ChunkPieces& pieces) {
    for (const PiecePtr& piece : pieces) {
      if (piece->state != PieceState::kFilling || piece->end <= begin || piece->begin >= end)
        continue;
      set_state(piece, PieceState::kQueued);
    }
    send_ready(chunk, actions);
  });
}

bool PieceTable::seal_aged(Clock::time_point now, Actions& actions) {
  bool all = true;
  if (unacknowledged_.empty()) return all;
  for (auto& [chunk, pieces] : chunks_) {
    bool sealed = false;
    for (const PiecePtr& piece : pieces) {
      if (piece->state != PieceState::kFilling) continue;
      const bool aged = now - piece->first_written >= (piece->coalesces ? kCoalescingAge : kAge);
      if (aged) set_state(piece, PieceState::kQueued);
      (aged ? sealed : all) = aged;
    }
    if (sealed) send_ready(chunk, actions);
  }
  return all;
}

PiecePtr PieceTable::only_filling(uint64_t size) const noexcept {
  if (chunks_.size() != 1 || chunks_.begin()->second.size() != 1 || unsynced()) return nullptr;
  const PiecePtr& piece = chunks_.begin()->second.front();
  const bool is_all =
      piece->state == PieceState::kFilling && piece->has_all(0, size) && piece->end == size;
  return is_all ? piece : nullptr;
}

void PieceTable::renumber(const PiecePtr& piece) {
  unacknowledged_.erase(unacknowledged_.find(piece->since));
  piece->sequence = piece->since = ++sequence_;
  unacknowledged_.insert(piece->since);
}

void PieceTable::set_state(const PiecePtr& piece, PieceState state) {
  const bool was = piece->unacknowledged();
  piece->state = state;
  if (was == piece->unacknowledged()) return;
  const uint64_t bytes = piece->buffer.span().size();
  if (was) {
    unacknowledged_.erase(unacknowledged_.find(piece->since));
    dirty_bytes_ -= bytes;
  } else {
    unacknowledged_.insert(piece->since);
    dirty_bytes_ += bytes;
  }
}

// ---- sending ----

bool PieceTable::is_next(const Piece& piece, const ChunkPieces& pieces) noexcept {
  return std::none_of(pieces.begin(), pieces.end(), [&](const PiecePtr& other) {
    if (other.get() == &piece || !other->shares_block(piece.begin, piece.end)) return false;
    return other->state == PieceState::kInFlight ||
           (other->state == PieceState::kQueued && other->sequence < piece.sequence);
  });
}

void PieceTable::send_ready(uint64_t chunk, Actions& actions) {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return;
  for (const PiecePtr& piece : found->second) {
    if (piece->state != PieceState::kQueued || !is_next(*piece, found->second)) continue;
    if (piece->end > bar_) {
      actions.report_cut = true;
      continue;
    }
    piece->state = PieceState::kInFlight;
    actions.send.push_back(piece);
  }
}

void PieceTable::send_all_ready(Actions& actions) {
  for (const auto& [chunk, pieces] : chunks_) send_ready(chunk, actions);
}

bool PieceTable::any_unacknowledged(uint64_t sequence, uint64_t begin, uint64_t end) const {
  if (begin >= end) return false;
  const uint64_t last = (end - 1) / chunk_size_;
  for (auto at = chunks_.lower_bound(begin / chunk_size_); at != chunks_.end() && at->first <= last;
       ++at) {
    for (const PiecePtr& piece : at->second) {
      if (piece->unacknowledged() && piece->since <= sequence && piece->begin < end &&
          piece->end > begin) {
        return true;
      }
    }
  }
  return false;
}

bool PieceTable::is_acknowledged(uint64_t sequence, uint64_t begin, uint64_t end) const {
  if (unacknowledged_.empty() || *unacknowledged_.begin() > sequence) return true;
  const bool everything = begin == 0 && end == ~uint64_t{0};
  return !everything && !any_unacknowledged(sequence, begin, end);
}

void PieceTable::wait(std::shared_ptr<Operation> operation, uint64_t sequence, uint64_t begin,
                      uint64_t end) {
  waiters_.push_back({sequence, begin, end, std::move(operation)});
}

void PieceTable::wake(Actions& actions) {
  std::erase_if(waiters_, [&](Waiter& waiter) {
    if (!is_acknowledged(waiter.sequence, waiter.begin, waiter.end)) return false;
    actions.proceed.push_back(std::move(waiter.operation));
    return true;
  });
}

void PieceTable::take_waiters(std::vector<std::shared_ptr<void>>& waiters) {
  for (Waiter& waiter : std::exchange(waiters_, {})) waiters.push_back(std::move(waiter.operation));
  each_chunk(0, ~uint64_t{0}, [&](uint64_t, ChunkPieces& pieces) {
    for (const PiecePtr& piece : pieces)
      if (piece->waiter) waiters.push_back(std::exchange(piece->waiter, nullptr));
  });
}

// ---- ends of WRITE calls ----

// A target has lost an earlier piece of the same block, which is to be sent again.
bool PieceTable::earlier_waits(const Piece& piece, const ChunkPieces& pieces) noexcept {
  return std::ranges::any_of(pieces, [&](const PiecePtr& other) {
    return other->state == PieceState::kQueued && other->sequence < piece.sequence &&
           other->shares_block(piece.begin, piece.end);
  });
}

void PieceTable::acknowledged(const PiecePtr& piece, Actions& actions) {
  if (piece->state != PieceState::kInFlight) return;
  piece->calls_ended();
  ChunkPieces& pieces = chunks_[piece->chunk];
  if (earlier_waits(*piece, pieces)) {  // this one is sent again after it
    piece->acknowledged.clear();
    piece->state = PieceState::kQueued;
    return send_ready(piece->chunk, actions);
  }
  const uint64_t chunk = piece->chunk;
  if (note_acknowledged(*piece)) {
    piece->sends = 0;
    set_state(piece, PieceState::kHeld);
    piece->buffer.move_to(Buffer::Account::kHeld);
    drop_covered(*piece, pieces, actions);
  } else {  // the file has other objects by now
    release(pieces, piece, actions);
  }
  send_ready(chunk, actions);
  wake(actions);
}

// False: none of its objects is in the view.
bool PieceTable::note_acknowledged(Piece& piece) {
  bool is_known = false;
  piece.acknowledgement = ++acknowledgements_;
  for (const Acknowledged::One& one : piece.acknowledged.all()) {
    ObjectState* const state = object(piece.stripe_index, one.replica);
    if (state == nullptr) continue;
    is_known = true;
    state->oldest_incarnation = oldest(state->oldest_incarnation, one.incarnation);
  }
  return is_known;
}

// Drops held pieces that `by` has overwritten whole: they need not be sent again.
void PieceTable::drop_covered(Piece& by, ChunkPieces& pieces, Actions& actions) {
  std::erase_if(pieces, [&](const PiecePtr& piece) {
    if (piece->state != PieceState::kHeld || piece->sequence >= by.sequence ||
        !by.has_all(piece->begin, piece->end)) {
      return false;
    }
    by.since = std::min(by.since, piece->since);
    piece->state = PieceState::kGone;
    actions.released.push_back(piece);
    return true;
  });  // oldest_incarnation may be too old now: then the SYNC is repeated (has_loss)
}

void PieceTable::refused(const PiecePtr& piece, Actions& actions) {
  if (piece->state != PieceState::kInFlight) return;
  release(chunks_[piece->chunk], piece, actions);
  send_ready(piece->chunk, actions);
  wake(actions);
}

void PieceTable::send_again(const PiecePtr& piece, Actions& actions) {
  if (piece->state != PieceState::kInFlight) return;
  piece->calls_ended();
  // A replica that has this one already would end with the earlier one.
  if (earlier_waits(*piece, chunks_[piece->chunk])) piece->acknowledged.clear();
  piece->state = PieceState::kQueued;
  send_ready(piece->chunk, actions);
}

// Takes the piece out of its chunk, which may be gone afterwards: the caller may call send_ready(),
// but must not use `pieces` again.
void PieceTable::release(ChunkPieces& pieces, const PiecePtr& piece, Actions& actions) {
  set_state(piece, PieceState::kGone);
  const PiecePtr kept = piece;
  std::erase(pieces, kept);
  const uint64_t chunk = kept->chunk;
  actions.released.push_back(kept);
  if (pieces.empty()) chunks_.erase(chunk);
}

// ---- held pieces and durability ----

bool PieceTable::unsynced() const noexcept {
  return std::ranges::any_of(objects_, [](const ObjectState& one) { return one.unsynced(); });
}

void PieceTable::note_dropped(const Piece& piece) {
  for (const Acknowledged::One& one : piece.acknowledged.all()) {
    ObjectState* const state = object(piece.stripe_index, one.replica);
    if (state == nullptr || piece.acknowledgement <= state->synced) continue;
    state->dropped_incarnation = oldest(state->dropped_incarnation, one.incarnation);
    state->dropped_newest = std::max(state->dropped_newest, one.incarnation);
    state->dropped_acknowledgement =
        std::max(state->dropped_acknowledgement, piece.acknowledgement);
  }
}

void PieceTable::drop_held(const PiecePtr& piece, Actions& actions) {
  if (piece->state != PieceState::kHeld) return;
  const auto found = chunks_.find(piece->chunk);
  // An earlier piece that shares a block with this one could undo it if it were sent again, so both
  // go.
  std::erase_if(found->second, [&](const PiecePtr& other) {
    if (other->state != PieceState::kHeld || other->sequence > piece->sequence ||
        !other->shares_block(piece->begin, piece->end)) {
      return false;
    }
    note_dropped(*other);
    other->state = PieceState::kGone;
    actions.released.push_back(other);
    return true;
  });
  if (found->second.empty()) chunks_.erase(found);
}

void PieceTable::drop_all_held(Actions& actions) {
  each_chunk(0, ~uint64_t{0}, [&](uint64_t, ChunkPieces& pieces) {
    std::erase_if(pieces, [&](const PiecePtr& piece) {
      if (piece->state != PieceState::kHeld) return false;
      note_dropped(*piece);
      piece->state = PieceState::kGone;
      actions.released.push_back(piece);
      return true;
    });
  });
}

void PieceTable::synced(uint32_t stripe_index, const Replica& replica, uint64_t acknowledgements,
                        Actions& actions) {
  ObjectState* const state = object(stripe_index, replica);
  if (state == nullptr) return;
  state->synced = std::max(state->synced, acknowledgements);
  if (state->dropped_acknowledgement <= acknowledgements) {
    state->forget_dropped();
  }
  drop_synced(actions);
  recount_oldest();
}

bool PieceTable::is_synced(const Piece& piece) noexcept {
  return std::ranges::none_of(objects_of(piece.stripe_index), [&](const ObjectState& one) {
    const bool is_vacant = places_ > 1 && one.replica.target == FileView::kVacant;
    return !is_vacant && one.synced < piece.acknowledgement;
  });
}

// Drops held pieces that every replica has made durable.
void PieceTable::drop_synced(Actions& actions) {
  each_chunk(0, ~uint64_t{0}, [&](uint64_t, ChunkPieces& pieces) {
    std::erase_if(pieces, [&](const PiecePtr& piece) {
      if (piece->state != PieceState::kHeld || !is_synced(*piece)) return false;
      piece->state = PieceState::kGone;
      actions.released.push_back(piece);
      return true;
    });
  });
}

void PieceTable::recount_oldest() {
  for (ObjectState& one : objects_) one.oldest_incarnation = one.dropped_incarnation;
  for (const auto& [chunk, pieces] : chunks_) {
    for (const PiecePtr& piece : pieces) {
      if (piece->state != PieceState::kHeld) continue;
      for (const Acknowledged::One& by : piece->acknowledged.all()) {
        ObjectState* const state = object(piece->stripe_index, by.replica);
        if (state == nullptr || piece->acknowledgement <= state->synced) continue;
        state->oldest_incarnation = oldest(state->oldest_incarnation, by.incarnation);
      }
    }
  }
}

void PieceTable::target_lost(uint32_t target, uint64_t incarnation, Actions& actions) {
  each_chunk(0, ~uint64_t{0}, [&](uint64_t chunk, ChunkPieces& pieces) {
    requeue(pieces, target, incarnation);
    send_ready(chunk, actions);
  });
  recount_oldest();
}

// The target has acknowledged the piece, not made it durable, and lost it.
bool PieceTable::has_lost(const Piece& piece, uint32_t target, uint64_t incarnation) noexcept {
  return std::ranges::any_of(piece.acknowledged.all(), [&](const Acknowledged::One& one) {
    if (one.replica.target != target || one.incarnation >= incarnation) return false;
    const ObjectState* const state = object(piece.stripe_index, one.replica);
    return state != nullptr && piece.acknowledgement > state->synced;
  });
}

// Queues again the pieces that were lost, and every later piece that shares a block with one of
// them, since the older bytes would overwrite it. (An earlier queued piece that shares a block with
// a held one is being sent again, too.) They go to the target that lost them.
void PieceTable::requeue(const ChunkPieces& pieces, uint32_t target, uint64_t incarnation) {
  const auto goes_again = [&](const Piece& piece) {
    if (has_lost(piece, target, incarnation)) return true;
    return std::ranges::any_of(pieces, [&](const PiecePtr& other) {
      return other->state == PieceState::kQueued && other->sequence < piece.sequence &&
             other->shares_block(piece.begin, piece.end);
    });
  };
  for (bool more = true; more;) {
    more = false;
    for (const PiecePtr& piece : pieces) {
      if (piece->state != PieceState::kHeld || !goes_again(*piece)) continue;
      piece->acknowledged.forget(target);
      set_state(piece, PieceState::kQueued);
      piece->buffer.move_to(Buffer::Account::kDirty);
      more = true;
    }
  }
}

bool PieceTable::has_loss(uint32_t stripe_index, const Replica& replica, uint64_t incarnation) {
  recount_oldest();
  const ObjectState* const state = object(stripe_index, replica);
  return state != nullptr && state->dropped_incarnation != 0 &&
         state->dropped_incarnation < incarnation;
}

bool PieceTable::another_has_it(uint32_t stripe_index, const Replica& replica) noexcept {
  const ObjectState* const lost = object(stripe_index, replica);
  return lost != nullptr &&
         std::ranges::any_of(objects_of(stripe_index), [&](const ObjectState& one) {
           const bool is_vacant = one.replica.target == FileView::kVacant;
           return !is_vacant && one.replica != replica && one.since <= lost->synced;
         });
}

void PieceTable::forget_loss(uint32_t stripe_index, const Replica& replica, uint64_t incarnation) {
  ObjectState* const state = object(stripe_index, replica);
  if (state == nullptr) return;
  if (state->dropped_newest < incarnation) {
    state->forget_dropped();
  } else {
    state->dropped_incarnation = incarnation;
  }
  recount_oldest();
}

void PieceTable::forget_objects() {
  for (ObjectState& one : objects_) one = {.replica = one.replica};
}

void PieceTable::trim(uint64_t size, Actions& actions, int error) {
  actions.given_up_error = error;
  each_chunk(size, ~uint64_t{0}, [&](uint64_t, ChunkPieces& pieces) {
    std::erase_if(pieces, [&](const PiecePtr& piece) {
      if (piece->end <= size) return false;
      if (piece->begin < size) {
        if (piece->state == PieceState::kInFlight) {
          piece->cut_at = std::min(piece->cut_at, size);
        } else {
          piece->cut(size);
        }
        return false;
      }
      if (piece->waiter && !piece->is_sent) actions.given_up.push_back(std::move(piece->waiter));
      set_state(piece, PieceState::kGone);
      actions.released.push_back(piece);
      return true;
    });
  });
  wake(actions);
}

}  // namespace braidfs::client
