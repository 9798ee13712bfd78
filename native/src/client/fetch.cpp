#include "client/fetch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "client/pieces.h"
#include "client/read_replica.h"

namespace braidfs::client {

void Fetch::begin(const InodePtr& inode, uint64_t offset, uint32_t size) {
  inode_ = inode;
  offset_ = offset;
  size_ = size;
  restarts_ = 0;
  error_ = 0;
  once_ = asked_cache_ = is_kept_ = false;
  cut_wait_ = {};
}

void Fetch::end() {
  buffer_.reset();
  view_.reset();
  inode_.reset();
}

// ---- looking at the inode ----

// The losses are counted before anybody looks at the pieces, so no loss in between is missed.
void Fetch::look(Context& context) {
  const Leases& leases = context.leases();
  losses_ = context.incarnations().losses();
  view_ = inode_->view_locked();
  file_size_ = inode_->size();
  stamp_ = leases.count() && leases.holds(*inode_, kLeaseData) ? inode_->stamp() : 0;
  const uint64_t there = file_size_ - std::min(offset_, file_size_);
  length_ = static_cast<uint32_t>(std::min<uint64_t>(size_, there));
}

bool Fetch::waits(Lane& lane, Wait& wait) {
  if (waits_for_cut(lane, wait)) return true;
  if (error_ != 0) return false;
  const uint64_t end = offset_ + size_;
  PieceTable& pieces = inode_->pieces();
  if (pieces.unacknowledged() == 0 || pieces.is_acknowledged(pieces.sequence(), offset_, end))
    return false;
  wait.inode = inode_;
  pieces.seal_range(offset_, end, wait.actions);
  user_.about_to_wait(lane);
  pieces.wait(std::static_pointer_cast<Operation>(user_.shared_from_this()), pieces.sequence(),
              offset_, end);
  return true;
}

// Whether some of the bytes are void at the targets until a cut is reported to the metaserver
// (cuts.h).
bool Fetch::waits_for_cut(Lane& lane, Wait& wait) {
  Cuts& cuts = inode_->cuts;
  const bool is_void = cuts.unreported() && length_ != 0 && offset_ + length_ > cuts.level();
  const bool waits =
      is_void && cut_wait_.wait(*inode_, user_.shared_from_this(), wait.event, error_);
  if (waits) wait.inode = inode_;
  if (waits) user_.about_to_wait(lane);
  if (waits != pauses_cuts_) cuts.pauses += (pauses_cuts_ = waits) ? 1 : -1;
  return waits;
}

void Fetch::Wait::act(Lane& lane) {
  if (event) lane.context().events().put(std::move(*event));
  run_actions(lane, inode, actions);
}

bool Fetch::looks_and_waits(Lane& lane) {
  Wait wait;
  {
    const std::scoped_lock lock(inode_->mu());
    look(lane.context());
    if (!waits(lane, wait)) return false;
  }
  wait.act(lane);
  return true;
}

void Fetch::waits_no_more() {
  if (!std::exchange(pauses_cuts_, false)) return;
  const std::scoped_lock lock(inode_->mu());
  --inode_->cuts.pauses;
}

// ---- fetching ----

bool Fetch::take_buffer(Context& context) {
  if (!buffer_) buffer_ = context.memory().read(Memory::size_for(size_));
  return static_cast<bool>(buffer_);
}

bool Fetch::take_parts(Context& context, const prefetch::Parts& parts) {
  const prefetch::Part& first = parts.front();
  if (first.from == 0 && first.length == length_ && first.buffer.use_count() == 1) {
    buffer_ = std::move(*first.buffer);
    buffer_.move_to(Buffer::Account::kRead);
    return true;
  }
  if (!take_buffer(context)) return false;
  std::byte* place = buffer_.span().data();
  for (const prefetch::Part& part : parts) place = std::ranges::copy(part.span(), place).out;
  return true;
}

void Fetch::ask(Lane& lane) {
  if (lies_inline()) return answer_inline(lane);
  if (!ask_cache(lane)) ask_targets(lane);
}

void Fetch::answer_inline(Lane& lane) {
  const auto content = std::as_bytes(std::span(view_->inline_bytes));
  const auto from = content.subspan(std::min<uint64_t>(offset_, content.size()));
  const auto there = from.first(std::min<size_t>(from.size(), length_));
  std::ranges::copy(there, buffer_.span().begin());
  std::ranges::fill(bytes().subspan(there.size()), std::byte{0});
  lane.counters().inline_reads.fetch_add(1, std::memory_order_relaxed);
  is_kept_ = true;
  user_.fetched(lane, 0);
}

// Asks the local cache, at most once. True: it has all of the bytes, and is asked for them.
bool Fetch::ask_cache(Lane& lane) {
  LocalCache* const cache = lane.context().local_cache();
  if (cache == nullptr || stamp_ == 0 || std::exchange(asked_cache_, true)) return false;
  const auto done = [this, &lane, user = user_.shared_from_this()](bool found) {
    if (!found) return ask_targets(lane);
    is_kept_ = true;
    user_.fetched(lane, 0);
  };
  return cache->read(lane.index(), extent(), buffer_.span(), done);
}

void Fetch::ask_targets(Lane& lane) {
  error_ = 0;
  again_ = false;
  pending_ = 1;  // for this function, until it has asked for all spans
  const uint64_t end = offset_ + length_;
  for (uint64_t at = offset_; at < end;) {
    const Span span = first_span(*view_, at, end);
    const auto place = buffer_.span().subspan(at - offset_, span.length);
    at += span.length;
    if (span.object_offset >= limits::kObjectBytesMax) {  // no object can hold that: a hole
      std::ranges::fill(place, std::byte{0});
    } else {
      ask_target(lane, span, place);
    }
  }
  if (--pending_ == 0) finish(lane);
}

void Fetch::ask_target(Lane& lane, const Span& span, std::span<std::byte> place) {
  Call* call = lane.make_call();
  call->op = Op::kRead;
  call->offset = span.object_offset;
  call->length = span.length;
  call->inode = inode_;
  call->place = place;
  call->owner = std::shared_ptr<CallOwner>(user_.shared_from_this(), this);
  call->once = once_;
  aim_read(lane, *call, view_, span.stripe_index);
  ++pending_;
  lane.submit(call);
}

void Fetch::call_done(Lane& lane, Call& call) {
  if (ask_next(lane, call)) return;
  note(lane.context(), call);
  if (--pending_ == 0) finish(lane);
}

// An object that must exist is missing: it is lost, or the lease is, and whoever has it now has
// given the file other objects.
bool Fetch::may_be_replaced(Context& context, const Call& call) {
  if (call.status != Status::kNoObject) return false;
  const std::scoped_lock lock(inode_->mu());
  return !context.leases().holds(*inode_, kLeaseData);
}

void Fetch::note(Context& context, const Call& call) {
  if (call.status == Status::kOk ||
      (call.status == Status::kNoObject && !must_exist(*call.view, call.stripe_index))) {
    const auto hole = call.place.subspan(call.received);
    if (!hole.empty()) std::memset(hole.data(), 0, hole.size());
  } else if (call.status == Status::kStaleTruncateEpoch || may_be_replaced(context, call)) {
    again_ = true;
  } else if (error_ == 0) {
    error_ = errno_of(call.status);
  }
}

void Fetch::finish(Lane& lane) {
  const bool is_void = again_ || lane.context().incarnations().losses() != losses_;
  if (error_ == 0 && is_void && restarts_++ < kRestartsMax) return user_.begin_again(lane);
  user_.fetched(lane, error_ == 0 && is_void ? EIO : error_);
}

// ---- using the bytes ----

bool Fetch::is_current(Context& context) {
  if (stamp_ == 0) return false;
  const std::scoped_lock lock(inode_->mu());
  return inode_->stamp() == stamp_ && context.leases().holds(*inode_, kLeaseData);
}

void Fetch::offer_to_cache(Context& context) {
  LocalCache* const cache = context.local_cache();
  if (cache == nullptr || is_kept_ || !is_current(context)) return;
  cache->keep(extent(), std::move(buffer_));
}

}  // namespace braidfs::client
