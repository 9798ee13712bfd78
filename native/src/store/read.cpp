// READ: makes a plan of preads; then verifies every block against its record (except whole blocks
// that the reader verifies), lays REDO bytes over it, fills holes with zeros, and returns the sums
// that travel with the payload.
#include <algorithm>
#include <cstring>

#include "braidfs/frame.h"
#include "store/body.h"

namespace braidfs::store {

namespace {

constexpr auto kReadTogether = std::chrono::seconds(2);

// Notes a large read. True: a part of the range was read a moment ago, so by another reader.
bool note_large_read(std::span<const GroupPiece> pieces, Clock::time_point now) {
  bool again = false;
  for (const GroupPiece& piece : pieces) {
    Group& group = *piece.group;
    if (now - group.read_at > kReadTogether) group.read.reset();
    group.read_at = now;
    const auto blocks = blocks_of(piece);
    again = again || (group.read & blocks).any();
    group.read |= blocks;
  }
  return again;
}

// Removes the note: the read was given up and will be done again.
void forget_large_read(std::span<const GroupPiece> pieces) noexcept {
  for (const GroupPiece& piece : pieces) piece.group->read &= ~blocks_of(piece);
}

}  // namespace

ReadState::~ReadState() { body.release(*this); }

ReadOp::ReadOp() noexcept = default;
ReadOp::ReadOp(ReadOp&&) noexcept = default;
ReadOp& ReadOp::operator=(ReadOp&&) noexcept = default;
ReadOp::~ReadOp() = default;
IoPlan& ReadOp::plan() noexcept { return state_->plan; }

void StoreBody::release(ReadState& state) noexcept {
  if (state.ticket == 0) return;
  const std::lock_guard guard(state.object->mu);
  state.object->range.unlock(state.ticket);
  forget_large_read(state.noted);
}

Status StoreBody::begin_read(ReadOp& op, const ReadRequest& request, Wait wait) {
  op.state_.reset();
  if (request.length == 0 || request.length > limits::kFramePayloadLengthMax)
    return Status::kBadRequest;
  if (request.offset > kObjectBytesMax) return Status::kEfbig;
  if (request.buffer.size() < read_buffer_bytes(request.offset, request.length))
    return Status::kBadRequest;
  auto state = std::make_unique<ReadState>(*this);
  state->request = request;
  state->object = table_.get(request.object);
  // destroys `state`, which cancels the op
  if (Status s = prepare(*state, wait); s != Status::kOk) return s;
  op.state_ = std::move(state);
  return Status::kOk;
}

Status StoreBody::prepare(ReadState& state, Wait wait) {
  Object& object = *state.object;
  Guard guard(object.mu);
  if (wait == Wait::kYes && !object.removed) fetch_together(object, state.request);
  if (Status s = open_object(object, wait); s != Status::kOk) return s;
  if (!object.exists) return Status::kNoObject;
  const uint64_t first = state.request.offset / kBlockSize;
  const uint64_t end = (state.request.offset + state.request.length + kBlockSize - 1) / kBlockSize;
  state.ticket = wait == Wait::kNo ? object.range.try_lock(first, end, false)
                                   : object.range.lock(guard, first, end, false);
  if (state.ticket == 0) return Status::kEagain;
  if (object.removed) return Status::kNoObject;
  const uint64_t left = object.length - std::min(object.length, state.request.offset);
  state.length = static_cast<uint32_t>(std::min<uint64_t>(left, state.request.length));
  return state.length == 0 ? Status::kOk : plan_read(state, wait);
}

namespace {

// Begins to read a group's records and `length` bytes of its beginning.
void fetch_group(File& file, uint32_t group, uint64_t length) {
  file.will_need(page_offset(group, 0), kPageSize + length);
}

}  // namespace

// A small file's records and bytes lie side by side. When the records are not in memory, both are
// read from the device at once, instead of one after the other.
void StoreBody::fetch_together(Object& object, const ReadRequest& request) {
  const auto group = static_cast<uint32_t>(request.offset / kGroupBytes);
  const uint64_t end = request.offset % kGroupBytes + request.length;
  if (end > config_.direct_read_bytes_min || object.groups.contains(group)) return;
  std::shared_ptr<File> file;
  if (file_of(object, file) == Status::kOk) fetch_group(*file, group, end);
}

Status StoreBody::fetch(ObjectId id, uint32_t length, Fetching& fetching) {
  if (length == 0 || length > kGroupBytes) return Status::kBadRequest;
  {
    const ObjectPointer object = table_.get(id);
    const std::lock_guard guard(object->mu);
    if (object->removed) return Status::kNoObject;
    if (Status s = file_of(*object, fetching.file); s != Status::kOk) return s;
  }
  fetching.last = block_offset(0, 0, 0) + length - 1;
  fetch_group(*fetching.file, 0, length);
  return Status::kOk;
}

// True when a large read bypasses the page cache, which is left to small reads: data that is read
// once, as in a restore or a scan, then costs no copy and evicts nothing. Where several readers
// read an object together, the first one fills the page cache for the others.
bool StoreBody::reads_past_cache(ReadState& state, std::vector<GroupPiece>& pieces, Wait wait) {
  if (state.plan.bytes() < config_.direct_read_bytes_min || !state.plan.is_aligned()) return false;
  Object& object = *state.object;
  const auto now = Clock::now();
  if (note_large_read(pieces, now)) object.read_together_until = now + kReadTogether;
  state.noted = std::move(pieces);
  if (now < object.read_together_until) return false;
  std::shared_ptr<File> file;
  return file_of(object, file, wait) == Status::kOk &&
         !std::ranges::all_of(state.plan.segments(), [&](const IoSegment& segment) {
           return file->is_cached(segment.file_offset, segment.length);
         });
}

// Plans one pread per group, from its first to its last block that is not a hole.
Status StoreBody::plan_read(ReadState& state, Wait wait) {
  Object& object = *state.object;
  const uint64_t first = state.request.offset / kBlockSize;
  const uint64_t end = (state.request.offset + state.length + kBlockSize - 1) / kBlockSize;
  std::vector<GroupPiece> pieces = pieces_of(first, end);
  if (Status s = load_pieces(object, pieces, wait); s != Status::kOk) return s;
  state.blocks.reserve(end - first);
  for (const GroupPiece& piece : pieces) {
    const size_t base = state.blocks.size();
    size_t home_first = SIZE_MAX;
    size_t home_end = 0;
    for (uint32_t i = 0; i < piece.count; ++i) {
      state.blocks.push_back(view_of(*piece.group, piece.index, piece.first + i));
      if (state.blocks.back().hole || state.blocks.back().redo) continue;
      home_first = std::min(home_first, base + i);
      home_end = base + i + 1;
    }
    if (home_end == 0) continue;
    IoSegment segment{.file_offset = state.blocks[home_first].home,
                      .part_first = static_cast<uint32_t>(state.plan.parts_.size())};
    add_part(state.plan, segment, state.request.buffer.data() + home_first * kBlockSize,
             (home_end - home_first) * kBlockSize);
    state.plan.segments_.push_back(segment);
  }
  state.plan.direct_ =
      reads_past_cache(state, pieces, wait) && direct_of(object, state.plan.file_) == Status::kOk;
  return state.plan.direct_ ? Status::kOk : file_of(object, state.plan.file_, wait);
}

Status StoreBody::verify_block(ReadState& state, size_t index) {
  const BlockView& view = state.blocks[index];
  const auto bytes = state.request.buffer.subspan(index * kBlockSize, kBlockSize);
  if (!view.hole && !view.redo && xxh3(bytes) == view.sum) return Status::kOk;
  if (view.hole || view.redo) {
    return read_block(*state.object, state.plan.file_, 0, view, bytes, Wait::kYes);
  }
  if (reread_direct(*state.object, view, bytes) == Status::kOk) return Status::kOk;
  report_corrupt(*state.object, state.request.offset / kBlockSize + index);
  return Status::kCorrupt;
}

// Prepares a block as its reader gets it, and computes the sum of that.
Status StoreBody::finish_block(ReadState& state, size_t index, uint64_t& sum) {
  const uint64_t start = (state.request.offset / kBlockSize + index) * kBlockSize;
  const uint64_t from = std::max(start, state.request.offset);
  const uint64_t to = std::min(start + kBlockSize, state.request.offset + state.length);
  const BlockView& view = state.blocks[index];
  const bool whole = to - from == kBlockSize;
  if (!whole || !state.request.raw || view.hole || view.redo) {
    if (Status s = verify_block(state, index); s != Status::kOk) return s;
  }
  if (whole) {
    sum = view.hole ? zero_block_sum() : view.sum;
  } else {
    sum = xxh3(state.request.buffer.subspan(index * kBlockSize + (from - start), to - from));
  }
  return Status::kOk;
}

ReadResult StoreBody::finish_read(ReadOp& op, std::span<uint64_t> sums) {
  const std::unique_ptr<ReadState> state = std::move(op.state_);
  if (!state) return {Status::kBadRequest, 0, 0};
  if (state->plan.status() != Status::kOk) return {count_error(state->plan.status()), 0, 0};
  if (!state->plan.done()) return {Status::kAborted, 0, 0};
  state->noted.clear();
  const uint32_t count = blocks_touched(state->request.offset, state->length);
  if (sums.size() < count) return {Status::kBadRequest, 0, 0};
  for (uint32_t i = 0; i < count; ++i) {
    if (Status s = finish_block(*state, i, sums[i]); s != Status::kOk) return {s, 0, 0};
  }
  return {Status::kOk, state->length, count};
}

namespace {

// True when the whole part is in the page cache and no page of it is still being read, for which
// the sender would wait. The pages of a part arrive in order, so the last one tells.
bool is_there(File& file, const FilePart& part) {
  std::byte last{};
  const iovec place{&last, 1};
  return file.is_cached(part.offset, part.length) &&
         file.readv({&place, 1}, part.offset + part.length - 1, true) == 1;
}

std::vector<FilePart> parts_of(const IoPlan& plan) {
  std::vector<FilePart> parts;
  for (const IoSegment& segment : plan.segments())
    parts.push_back({plan.fd(), segment.file_offset, segment.length});
  return parts;
}

}  // namespace

// True when every block lies at its place in the file, and the read goes through the page cache.
bool StoreBody::may_lend(const ReadState& state) const {
  return state.request.raw && state.request.offset % kBlockSize == 0 &&
         state.length >= config_.lend_bytes_min && !state.plan.direct_ &&
         std::ranges::none_of(state.blocks,
                              [](const BlockView& block) { return block.hole || block.redo; });
}

bool StoreBody::fetch_to_lend(ReadOp& op) {
  ReadState& state = *op.state_;
  if (!may_lend(state)) return false;
  IoPlan& plan = state.plan;
  state.parts = parts_of(plan);
  for (const FilePart& part : state.parts) plan.file_->will_need(part.offset, part.length);
  const size_t last = state.blocks.size() - 1;
  plan.segments_.clear();
  IoSegment segment{.file_offset = state.blocks[last].home,
                    .part_first = static_cast<uint32_t>(plan.parts_.size())};
  add_part(plan, segment, state.request.buffer.data() + last * kBlockSize, kBlockSize);
  plan.segments_.push_back(segment);
  return true;
}

ReadResult StoreBody::lend_read(ReadOp& op, std::span<uint64_t> sums, Lent& lent) {
  constexpr ReadResult kNotHere{Status::kEagain, 0, 0};
  ReadState& state = *op.state_;
  if (!may_lend(state) || state.plan.status() != Status::kOk) return kNotHere;
  std::vector<FilePart> parts = state.parts.empty() ? parts_of(state.plan) : state.parts;
  File& file = *state.plan.file_;
  const uint32_t count = blocks_touched(state.request.offset, state.length);
  if (sums.size() < count) return {Status::kBadRequest, 0, 0};
  if (!std::ranges::all_of(parts, [&](const FilePart& part) { return is_there(file, part); }))
    return kNotHere;
  if (const uint32_t whole = state.length / kBlockSize; whole < count) {
    const iovec tail{state.request.buffer.data() + size_t{whole} * kBlockSize, kBlockSize};
    if (file.readv({&tail, 1}, state.blocks[whole].home, true) != kBlockSize) return kNotHere;
    if ((parts.back().length -= kBlockSize) == 0) parts.pop_back();
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (Status s = finish_block(state, i, sums[i]); s != Status::kOk) return {s, 0, 0};
  }
  lent = {state.plan.file_, std::move(parts)};
  state.noted.clear();
  const ReadResult result{Status::kOk, state.length, count};
  op.state_.reset();
  return result;
}

}  // namespace braidfs::store
