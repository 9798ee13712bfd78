#include "client/ranges.h"

#include <algorithm>
#include <cerrno>

#include "client/context.h"
#include "client/lanes.h"
#include "client/pieces.h"
#include "client/read_replica.h"

namespace braidfs::client {

namespace {

constexpr uint32_t kPunchLengthMax = 1u << 30;
constexpr uint64_t kNowhere = ~uint64_t{0};

}  // namespace

uint64_t object_offset_from(const FileView& view, uint32_t stripe_index, uint64_t from) noexcept {
  const uint64_t chunk = from / view.chunk_size;
  const uint64_t row = chunk / view.stripe_width;
  const uint64_t column = chunk % view.stripe_width;
  if (stripe_index == column) return row * view.chunk_size + from % view.chunk_size;
  return (stripe_index > column ? row : row + 1) * view.chunk_size;
}

uint64_t file_offset_of(const FileView& view, uint32_t stripe_index, uint64_t at) noexcept {
  const uint64_t chunk = at / view.chunk_size * view.stripe_width + stripe_index;
  return chunk * view.chunk_size + at % view.chunk_size;
}

// ---- punch ----

PunchOperation::PunchOperation(uint64_t token, InodePtr inode, uint64_t begin, uint64_t end)
    : DurableRangeOperation(token, std::move(inode)), begin_(begin), end_(end) {}

void PunchOperation::start(Lane& lane, uint64_t token, InodePtr inode, uint64_t begin,
                           uint64_t end) {
  std::make_shared<PunchOperation>(token, std::move(inode), begin, end)->proceed(lane);
}

int PunchOperation::change(Lane& lane) {
  for (uint32_t row = 0; row < view().rows.size(); ++row) {
    const uint32_t stripe = row / view().places;
    if (!view().has(stripe, view().rows[row])) continue;  // a vacant place
    const uint64_t end =
        std::min(object_offset_from(view(), stripe, end_), limits::kObjectBytesMax);
    for (uint64_t at = object_offset_from(view(), stripe, begin_); at < end;) {
      const auto length = static_cast<uint32_t>(std::min<uint64_t>(end - at, kPunchLengthMax));
      submit(lane, make_call(lane, Op::kPunch, row, at, length));
      at += length;
    }
  }
  return 0;
}

// ---- seek ----

SeekOperation::SeekOperation(uint64_t token, InodePtr inode, uint64_t from, bool hole)
    : token_(token), inode_(std::move(inode)), from_(from), hole_(hole) {}

void SeekOperation::start(Lane& lane, uint64_t token, InodePtr inode, uint64_t from, bool hole) {
  std::make_shared<SeekOperation>(token, std::move(inode), from, hole)->proceed(lane);
}

// Bytes that a target lost and that are being sent again are data, although the target does not
// know them just now. So the SEEK waits for them, as a READ does (fetch.cpp).
bool SeekOperation::wait_for_pieces(Lane& lane) {
  Actions actions;
  {
    const std::scoped_lock lock(inode_->mu());
    view_ = inode_->view_locked();
    PieceTable& pieces = inode_->pieces();
    const uint64_t sequence = pieces.sequence();
    if (pieces.is_acknowledged(sequence, 0, kNowhere)) return false;
    pieces.seal_all(actions);
    pieces.wait(shared_from_this(), sequence, 0, kNowhere);
  }
  run_actions(lane, inode_, actions);
  lane.context().lanes().hurry();
  return true;
}

void SeekOperation::proceed(Lane& lane) {
  losses_ = lane.context().incarnations().losses();  // before it looks at the pieces
  if (wait_for_pieces(lane)) return;
  nearest_ = kNowhere;
  again_ = false;
  pending_ = 1;
  if (!view_->inline_bytes.empty()) return seek_inline(lane);
  for (uint32_t stripe = 0; stripe < view_->stripe_width; ++stripe) {
    ask(lane, stripe, object_offset_from(*view_, stripe, from_));
  }
  advance(lane);
}

// Only zeros follow the bytes that lie in the record.
void SeekOperation::seek_inline(Lane& lane) {
  if (hole_) nearest_ = std::max<uint64_t>(from_, view_->inline_bytes.size());
  if (!hole_ && from_ < view_->inline_bytes.size()) nearest_ = from_;
  advance(lane);
}

void SeekOperation::ask(Lane& lane, uint32_t stripe_index, uint64_t offset) {
  if (offset >= limits::kObjectBytesMax) return found(stripe_index, hole_ ? offset : kNowhere);
  Call* call = lane.make_call();
  call->op = Op::kSeek;
  call->offset = offset;
  call->length = hole_ ? 1 : 0;
  aim_read(lane, *call, view_, stripe_index);
  call->inode = inode_;
  call->owner = shared_from_this();
  ++pending_;
  lane.submit(call);
}

void SeekOperation::found(uint32_t stripe_index, uint64_t at) {
  if (at != kNowhere) nearest_ = std::min(nearest_, file_offset_of(*view_, stripe_index, at));
}

void SeekOperation::call_done(Lane& lane, Call& call) {
  if (ask_next(lane, call)) return;
  if (call.status == Status::kNoObject && !must_exist(*call.view, call.stripe_index)) {
    found(call.stripe_index, hole_ ? call.offset : kNowhere);
  } else if (call.status == Status::kStaleTruncateEpoch) {
    again_ = true;
  } else if (call.status != Status::kOk) {
    if (error_ == 0) error_ = errno_of(call.status);
  } else if (call.seek_ended) {
    found(call.stripe_index, call.seek_at);
  } else if (file_offset_of(*view_, call.stripe_index, call.seek_at) < nearest_) {
    ask(lane, call.stripe_index, call.seek_at);
  }
  advance(lane);
}

void SeekOperation::advance(Lane& lane) {
  if (--pending_ > 0) return;
  if (error_ == 0 && (again_ || lane.context().incarnations().losses() != losses_)) {
    if (++rounds_ < kRoundsMax) return proceed(lane);
    error_ = EIO;
  }
  const int64_t at = nearest_ == kNowhere ? kNothing : static_cast<int64_t>(nearest_);
  lane.context().events().put(
      {.kind = EventKind::kDone, .token = token_, .ino = inode_->ino(), .a = error_, .b = at});
}

}  // namespace braidfs::client
