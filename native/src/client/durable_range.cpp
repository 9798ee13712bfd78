#include "client/durable_range.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/context.h"

namespace braidfs::client {

void DurableRangeOperation::proceed(Lane& lane) {
  {
    const std::scoped_lock lock(inode_->mu());
    inode_->bytes_change();
  }
  const FileViewPtr former = std::exchange(view_, inode_->view());
  if (former && former->file_id != view_->file_id) stripes_ = 0;  // the former objects are removed
  syncing_ = again_ = false;
  incarnations_.assign(view_->rows.size(), 0);
  pending_ = 1;
  if (const int error = change(lane); error_ == 0) error_ = error;
  advance(lane);
}

Call* DurableRangeOperation::make_call(Lane& lane, Op op, uint32_t row, uint64_t offset,
                                       uint32_t length) {
  Call* call = lane.make_call();
  call->op = op;
  call->aim(view_, row / view_->places, view_->rows[row]);
  call->part = row;
  call->offset = offset;
  call->length = length;
  return call;
}

void DurableRangeOperation::submit(Lane& lane, Call* call) {
  call->inode = inode_;
  call->owner = shared_from_this();
  ++pending_;
  lane.submit(call);
}

void DurableRangeOperation::sync(Lane& lane) {
  syncing_ = true;
  pending_ = 1;
  for (uint32_t row = 0; row < incarnations_.size(); ++row) {
    if (incarnations_[row] == 0) continue;
    submit(lane, make_call(lane, Op::kSync, row, incarnations_[row], 0));
  }
  advance(lane);
}

void DurableRangeOperation::call_done(Lane& lane, Call& call) {
  if (call.status != Status::kOk) {
    if (goes_again(call.status)) {
      again_ = true;
    } else if (error_ == 0) {
      error_ = errno_of(call.status);
    }
  } else if (call.op != Op::kSync) {
    uint64_t& oldest = incarnations_[call.part];
    oldest = oldest == 0 ? call.incarnation : std::min(oldest, call.incarnation);
    stripes_ |= uint64_t{1} << call.stripe_index;
  }
  advance(lane);
}

void DurableRangeOperation::advance(Lane& lane) {
  if (--pending_ > 0) return;
  if (error_ == 0 && again_) {
    if (++rounds_ < kRoundsMax) return proceed(lane);
    error_ = EIO;
  }
  if (error_ == 0 && !syncing_) return sync(lane);
  finish(lane, result());
}

void DurableRangeOperation::finish(Lane& lane, int64_t result) {
  lane.context().events().put(
      {.kind = EventKind::kDone, .token = token_, .ino = inode_->ino(), .a = error_, .b = result});
}

}  // namespace braidfs::client
