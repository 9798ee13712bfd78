// WRITE: decides where each block goes (in place, other slot, log), appends the log entry, and
// switches the records.
#include <algorithm>
#include <cstring>

#include "braidfs/frame.h"
#include "store/body.h"
#include "store/fault.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

constexpr uint32_t kSwitchBlocksMin = 32;  // below it REDO costs less than the other slot

uint64_t end_of(const WriteRequest& request) noexcept {
  return request.offset + request.payload.size();
}

Status check(const WriteRequest& request) noexcept {
  const size_t length = request.payload.size();
  if (length == 0 || length > limits::kFramePayloadLengthMax) return Status::kBadRequest;
  if (request.offset > kObjectBytesMax || length > kObjectBytesMax - request.offset)
    return Status::kEfbig;
  const uint32_t blocks = blocks_touched(request.offset, static_cast<uint32_t>(length));
  if (!request.sums.empty() && request.sums.size() != blocks) return Status::kBadRequest;
  return Status::kOk;
}

// True when the write overwrites all that the group holds, so that it may go to the other slot.
bool may_switch(const GroupPiece& piece) {
  const auto touched = blocks_of(piece);
  const auto& occupied = piece.group->occupied;
  return piece.count >= kSwitchBlocksMin && (occupied & touched).any() &&
         (occupied & ~touched).none();
}

}  // namespace

WriteState::~WriteState() { body.release(*this); }

WriteOp::WriteOp() noexcept = default;
WriteOp::WriteOp(WriteOp&&) noexcept = default;
WriteOp& WriteOp::operator=(WriteOp&&) noexcept = default;
WriteOp::~WriteOp() = default;
IoPlan& WriteOp::plan() noexcept { return state_->plan; }

Status StoreBody::begin_write(WriteOp& op, const WriteRequest& request, Wait wait) {
  op.state_.reset();
  if (Status s = check(request); s != Status::kOk) return s;
  if (Status s = wait_for_room(wait); s != Status::kOk) return s;
  auto state = std::make_unique<WriteState>(*this);
  state->request = request;
  state->first_block = request.offset / kBlockSize;
  state->end_block = (end_of(request) + kBlockSize - 1) / kBlockSize;
  state->object = table_.get(request.object);
  // destroys `state`, which cancels the op
  if (Status s = prepare(*state, wait); s != Status::kOk) return s;
  op.state_ = std::move(state);
  return Status::kOk;
}

Status StoreBody::prepare(WriteState& state, Wait wait) {
  Object& object = *state.object;
  Guard guard(object.mu);
  if (Status s = lock_for_write(state, guard, wait); s != Status::kOk) return s;
  if (!object.exists) {
    if (state.request.must_exist) return Status::kNoObject;
    if (wait == Wait::kNo) return Status::kEagain;
    if (!space_.admits_object()) return Status::kEnospc;
    if (Status s = create_object(object); s != Status::kOk) return s;
  }
  state.pieces = pieces_of(state.first_block, state.end_block);
  if (Status s = load_pieces(object, state.pieces, wait); s != Status::kOk) return s;
  state.sums.assign(state.request.sums.begin(), state.request.sums.end());
  if (state.sums.empty()) {
    state.sums.resize(state.end_block - state.first_block);
    hash_blocks(state.request.offset, state.request.payload, state.sums);
  }
  if (Status s = free_other_slots(state, guard, wait); s != Status::kOk) return s;
  if (Status s = merge_edges(state, guard, wait); s != Status::kOk) return s;
  classify(state);
  if (state.new_blocks != 0 && !space_.admits(state.new_blocks * kBlockSize))
    return Status::kEnospc;
  return plan_write(state);
}

// When a whole group is overwritten again before it was synced, the other slot still holds the
// committed state. A sync frees that slot. Without it, everything would go through the log and be
// written three times.
Status StoreBody::free_other_slots(WriteState& state, Guard& guard, Wait wait) {
  const auto is_awaited = [](const GroupPiece& piece) {
    return piece.group->other_busy && may_switch(piece) && !piece.group->other_in_flight;
  };
  for (int turn = 0; turn < 2 && std::ranges::any_of(state.pieces, is_awaited); ++turn) {
    if (wait == Wait::kNo) return Status::kEagain;
    guard.unlock();
    Status status = Status::kOk;
    if (turn == 0) {
      // waits for a sync under way, which may have freed it
      const std::lock_guard under_way(state.object->sync_mu);
    } else {
      status = sync_batch({&state.object, 1});
    }
    guard.lock();
    if (status != Status::kOk) return status;
    if (status = admit(*state.object, state.request.epoch); status != Status::kOk) return status;
  }
  return Status::kOk;
}

Status StoreBody::admit(Object& object, uint32_t epoch) const {
  if (object.removed) return Status::kNoObject;
  if (object.broken) return Status::kEio;
  if (!object.exists && table_.deleted_lately(object.id)) return Status::kNoObject;
  if (epoch < object.epoch) return Status::kStaleTruncateEpoch;
  return Status::kOk;
}

Status StoreBody::lock_for_write(WriteState& state, Guard& guard, Wait wait) {
  Object& object = *state.object;
  if (Status s = open_object(object, wait); s != Status::kOk) return s;
  state.ticket = wait == Wait::kNo
                     ? object.range.try_lock(state.first_block, state.end_block, true)
                     : object.range.lock(guard, state.first_block, state.end_block, true);
  if (state.ticket == 0) return Status::kEagain;
  // Checked after the wait, because a truncate may have come before.
  return admit(object, state.request.epoch);
}

Status StoreBody::merge_edges(WriteState& state, Guard& guard, Wait wait) {
  const uint64_t end = end_of(state.request);
  const uint64_t last = state.end_block - 1;
  const bool head_partial = state.request.offset % kBlockSize != 0 ||
                            (last == state.first_block && end % kBlockSize != 0);
  if (head_partial) {
    Status s = merge_block(state, guard, state.first_block, wait, state.head);
    if (s != Status::kOk) return s;
  }
  if (last == state.first_block || end % kBlockSize == 0) return Status::kOk;
  return merge_block(state, guard, last, wait, state.tail);
}

// Lays the new bytes over the verified old block. The block is read without the mutex, under the
// range lock.
Status StoreBody::merge_block(WriteState& state, Guard& guard, uint64_t block, Wait wait,
                              std::unique_ptr<Block>& merged) {
  Object& object = *state.object;
  const GroupPiece& piece = block == state.first_block ? state.pieces.front() : state.pieces.back();
  const BlockView view =
      view_of(*piece.group, piece.index, static_cast<uint32_t>(block % kGroupBlocks));
  std::shared_ptr<File> file;
  if (Status s = file_of(object, file, wait); s != Status::kOk) return s;
  merged = std::make_unique<Block>();
  guard.unlock();
  const Status status = read_block(object, file, block, view, merged->bytes, wait);
  const uint64_t start = block * kBlockSize;
  const uint64_t from = std::max(start, state.request.offset);
  const uint64_t to = std::min(start + kBlockSize, end_of(state.request));
  std::memcpy(merged->bytes.data() + (from - start),
              state.request.payload.data() + (from - state.request.offset), to - from);
  state.sums[block - state.first_block] = xxh3(merged->bytes);
  guard.lock();
  return status;
}

void StoreBody::classify(WriteState& state) {
  for (GroupPiece& piece : state.pieces) place_piece(state, piece);
}

void StoreBody::place_piece(WriteState& state, GroupPiece& piece) {
  Group& group = *piece.group;
  EntryRun run{.group = piece.index,
               .first = static_cast<uint16_t>(piece.first),
               .count = static_cast<uint16_t>(piece.count),
               .slot = group.slot};
  const uint64_t base = uint64_t{piece.index} * kGroupBlocks;
  if (may_switch(piece) && !group.other_busy && !group.other_in_flight &&
      state.object->range.try_extend(state.ticket, base, base + kGroupBlocks)) {
    group.other_in_flight = true;
    run.slot = static_cast<uint8_t>(1 - group.slot);
    run.flags = kRunSwitch;
    state.runs.push_back(run);
    state.new_blocks += piece.count - std::min(piece.count, group.other_blocks);
    return;
  }
  for (uint32_t at = piece.first; at < piece.first + piece.count;) {
    const bool redo = group.occupied[at];
    uint32_t end = at + 1;
    while (end < piece.first + piece.count && group.occupied[end] == redo) ++end;
    run.first = static_cast<uint16_t>(at);
    run.count = static_cast<uint16_t>(end - at);
    run.flags = redo ? kRunRedo : 0;
    state.runs.push_back(run);
    state.new_blocks += redo ? 0 : run.count;
    at = end;
  }
}

const std::byte* StoreBody::source_of(const WriteState& state, uint64_t block) const noexcept {
  if (block == state.first_block && state.head) return state.head->bytes.data();
  if (block == state.end_block - 1 && state.tail) return state.tail->bytes.data();
  return state.request.payload.data() + (block * kBlockSize - state.request.offset);
}

void StoreBody::add_part(IoPlan& plan, IoSegment& segment, const void* bytes, size_t length) const {
  auto* const start = static_cast<std::byte*>(const_cast<void*>(bytes));
  segment.length += static_cast<uint32_t>(length);
  if (segment.part_count != 0) {
    iovec& last = plan.parts_.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == start) {
      last.iov_len += length;
      return;
    }
  }
  plan.parts_.push_back({start, length});
  ++segment.part_count;
}

Status StoreBody::plan_write(WriteState& state) {
  IoPlan& plan = state.plan;
  plan.write_ = true;
  for (const EntryRun& run : state.runs) {
    IoSegment segment{.file_offset = block_offset(run.group, run.slot, run.first),
                      .part_first = static_cast<uint32_t>(plan.parts_.size())};
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint64_t block = uint64_t{run.group} * kGroupBlocks + run.first + i;
      const std::byte* bytes = source_of(state, block);
      if ((run.flags & kRunRedo) == 0) {
        add_part(plan, segment, bytes, kBlockSize);
      } else {
        state.redo.push_back(std::make_shared<RedoBlock>(redo_bytes_));
        std::memcpy(state.redo.back()->bytes.data(), bytes, kBlockSize);
      }
    }
    if (segment.length != 0) plan.segments_.push_back(segment);
  }
  plan.direct_ = plan.bytes() >= config_.direct_bytes_min && plan.is_aligned() &&
                 direct_of(*state.object, plan.file_) == Status::kOk;
  return plan.direct_ ? Status::kOk : file_of(*state.object, plan.file_);
}

Status StoreBody::finish_write(WriteOp& op) {
  const std::unique_ptr<WriteState> state = std::move(op.state_);
  if (!state) return Status::kBadRequest;
  if (state->plan.status() != Status::kOk) return count_error(state->plan.status());
  if (!state->plan.done()) return Status::kAborted;
  fault(FaultPoint::kWriteBeforeLog);
  const std::lock_guard guard(state->object->mu);
  uint64_t sequence = 0;
  if (Status s = log_write(*state, sequence); s != Status::kOk) return count_error(s);
  apply_write(*state, sequence);
  if (log_->has_much_to_write_out()) room_.notify_all();
  fault(FaultPoint::kWriteAfterLog);
  return Status::kOk;
}

EntryHeader StoreBody::header_for(const Object& object, EntryKind kind) const {
  EntryHeader header;
  header.kind = kind;
  header.file_id = object.id.file_id;
  header.stripe_index = object.id.stripe_index;
  header.epoch = object.epoch;
  header.object_length = object.length;
  if (auto found = object.groups.find(0); found != object.groups.end())
    header.base_generation = found->second->generation;
  return header;
}

Status StoreBody::log_write(WriteState& state, uint64_t& sequence) {
  const Object& object = *state.object;
  EntryHeader header =
      header_for(object, state.redo.empty() ? EntryKind::kWrite : EntryKind::kRedo);
  header.epoch = std::max(object.epoch, state.request.epoch);
  header.object_length = std::max(object.length, end_of(state.request));
  for (EntryRun& run : state.runs) run.base_generation = object.groups.at(run.group)->generation;
  std::vector<iovec> bytes;
  bytes.reserve(state.redo.size());
  for (const auto& redo : state.redo) bytes.push_back({redo->bytes.data(), kBlockSize});
  sequence = object.last_sequence;
  // Before the entry: otherwise a checkpoint that begins now would miss the object.
  table_.add_dirty(state.object);
  return log_->append(header, state.runs, state.sums, bytes, sequence);
}

void StoreBody::apply_write(WriteState& state, uint64_t sequence) {
  const ObjectPointer& object = state.object;
  object->length = std::max(object->length, end_of(state.request));
  object->epoch = std::max(object->epoch, state.request.epoch);
  size_t sum = 0;
  size_t redo = 0;
  for (const EntryRun& run : state.runs) {
    Group& group = *object->groups.at(run.group);
    if ((run.flags & kRunSwitch) != 0) {
      switch_slot(*object, run, sequence, group);
    }
    for (uint32_t block = run.first; block < uint32_t{run.first} + run.count; ++block) {
      group.set(block, state.sums[sum++]);
      if ((run.flags & kRunRedo) != 0) {
        group.redo[block] = state.redo[redo++];
      } else {
        group.occupied.set(block);
        group.redo.erase(block);
        object->bytes_unsynced = true;
      }
    }
    make_dirty(object, group);
  }
  space_.add(static_cast<int64_t>(state.new_blocks * kBlockSize));
  changed(object, sequence);
}

void StoreBody::switch_slot(Object& object, const EntryRun& run, uint64_t sequence, Group& group) {
  group.slot = run.slot;
  group.other_busy = true;
  group.other_blocks = static_cast<uint32_t>(group.occupied.count());
  group.switch_sequence = sequence;
  group.occupied.reset();
  group.redo.clear();
  group.versions.fill(0);
  group.sums.fill(0);
  object.switched.push_back(run.group);
}

// Also undoes a failed or abandoned write.
void StoreBody::release(WriteState& state) noexcept {
  if (state.ticket == 0) return;
  const std::lock_guard guard(state.object->mu);
  for (const EntryRun& run : state.runs) {
    if ((run.flags & kRunSwitch) == 0) continue;
    for (const GroupPiece& piece : state.pieces) {
      if (piece.index == run.group) piece.group->other_in_flight = false;
    }
  }
  state.object->range.unlock(state.ticket);
}

// Operations that have begun may exceed the bounds, each by its own length.
bool StoreBody::crowded() const noexcept {
  return log_->bytes() > config_.log_bytes_max || redo_bytes_ > config_.redo_bytes_max ||
         dirty_groups_ > config_.dirty_groups_max;
}

bool StoreBody::half_full() const noexcept {
  return log_->bytes() > config_.log_bytes_max / 2 || redo_bytes_ > config_.redo_bytes_max / 2 ||
         dirty_groups_ > config_.dirty_groups_max / 2;
}

Status StoreBody::wait_for_room(Wait wait) {
  if (half_full() && !checkpoint_wanted_.exchange(true)) room_.notify_all();
  if (!crowded()) return Status::kOk;
  if (wait == Wait::kNo) return Status::kEagain;
  if (!config_.background) {
    checkpoint();
    return crowded() ? Status::kBusy : Status::kOk;
  }
  Guard guard(room_mu_);
  const auto deadline = Clock::now() + std::chrono::milliseconds(config_.wait_ms_max);
  const bool room = room_.wait_until(guard, deadline, [&] { return !crowded(); });
  return room ? Status::kOk : Status::kBusy;
}

}  // namespace braidfs::store
