#include "client/copy.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "client/core.h"
#include "client/ranges.h"

namespace braidfs::client {

namespace {

constexpr uint64_t kPieceMax = 16u << 20;

struct Where {
  uint32_t stripe_index;
  uint64_t offset;  // in the object
  uint64_t left;    // of the chunk
};

Where where(const FileView& view, uint64_t at) {
  const uint64_t chunk = at / view.chunk_size;
  const auto stripe = static_cast<uint32_t>(chunk % view.stripe_width);
  return {stripe, object_offset_from(view, stripe, at), view.chunk_size - at % view.chunk_size};
}

}  // namespace

CopyOperation::CopyOperation(uint64_t token, CopyRange range, bool only_reach)
    : token_(token), range_(std::move(range)), only_reach_(only_reach) {}

void CopyOperation::start(Lane& lane, uint64_t token, CopyRange range, bool only_reach) {
  std::make_shared<CopyOperation>(token, std::move(range), only_reach)->proceed(lane);
}

void CopyOperation::proceed(Lane& lane) {
  source_ = range_.source->view();
  sink_ = range_.sink->view();
  if (only_reach_) return finish(lane, static_cast<int64_t>(reach(lane)));
  syncing_ = again_ = false;
  incarnations_.assign(sink_->stripe_width, 0);
  pending_ = 1;
  if (reach(lane) == range_.length) {
    copy(lane);
  } else {
    error_ = EIO;  // the layout or the map is another one than when Python asked
  }
  advance(lane);
}

uint64_t CopyOperation::reach(Lane& lane) const {
  uint64_t done = 0;
  while (done < range_.length) {
    const Where from = where(*source_, range_.source_begin + done);
    const Where to = where(*sink_, range_.sink_begin + done);
    const auto node = lane.node_of(source_->targets[from.stripe_index]);
    if (!node || node != lane.node_of(sink_->targets[to.stripe_index])) break;
    done += std::min(from.left, to.left);
  }
  return std::min(done, range_.length);
}

void CopyOperation::copy(Lane& lane) {
  uint64_t length = 0;
  for (uint64_t done = 0; done < range_.length; done += length) {
    const Where from = where(*source_, range_.source_begin + done);
    const Where to = where(*sink_, range_.sink_begin + done);
    length = std::min({from.left, to.left, range_.length - done, kPieceMax});
    Call* call = lane.make_call();
    call->op = Op::kCopy;
    call->target = sink_->targets[to.stripe_index];
    call->stripe_index = to.stripe_index;
    call->offset = to.offset;
    call->length = static_cast<uint32_t>(length);
    call->source = range_.source;
    call->source_view = source_;
    call->source_stripe = from.stripe_index;
    call->source_offset = from.offset;
    ask(lane, call);
  }
}

void CopyOperation::sync(Lane& lane) {
  syncing_ = true;
  pending_ = 1;
  for (uint32_t stripe = 0; stripe < sink_->stripe_width; ++stripe) {
    if (incarnations_[stripe] == 0) continue;
    Call* call = lane.make_call();
    call->op = Op::kSync;
    call->target = sink_->targets[stripe];
    call->stripe_index = stripe;
    call->offset = incarnations_[stripe];
    ask(lane, call);
  }
  advance(lane);
}

void CopyOperation::ask(Lane& lane, Call* call) {
  call->view = sink_;
  call->inode = range_.sink;
  call->owner = shared_from_this();
  ++pending_;
  lane.submit(call);
}

void CopyOperation::call_done(Lane& lane, Call& call) {
  if (call.status == Status::kStaleIncarnation) {
    again_ = true;
  } else if (call.status != Status::kOk) {
    if (error_ == 0) error_ = errno_of(call.status);
  } else if (call.op == Op::kCopy) {
    uint64_t& oldest = incarnations_[call.stripe_index];
    oldest = oldest == 0 ? call.incarnation : std::min(oldest, call.incarnation);
    stripes_ |= uint64_t{1} << call.stripe_index;
  }
  advance(lane);
}

void CopyOperation::advance(Lane& lane) {
  if (--pending_ > 0) return;
  if (error_ == 0 && again_) {
    if (++rounds_ < kRoundsMax) return proceed(lane);
    error_ = EIO;
  }
  if (error_ == 0 && !syncing_) return sync(lane);
  finish(lane, std::bit_cast<int64_t>(stripes_));
}

void CopyOperation::finish(Lane& lane, int64_t result) {
  lane.core().events().put({.kind = EventKind::kDone,
                            .token = token_,
                            .ino = range_.sink->ino(),
                            .a = error_,
                            .b = result});
}

}  // namespace braidfs::client
