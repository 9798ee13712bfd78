#include "client/read.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "client/announced_files.h"
#include "client/context.h"
#include "client/pieces.h"

namespace braidfs::client {

void ReadOperation::start(Lane& lane, const Handle& handle, const fuse::ReadRequest& request) {
  const auto self = lane.reads().take();
  ReadOperation& read = *self;
  read.arm(request.head, handle.inode, request.offset, request.size);
  read.fills_pages_ = (request.read_flags & fuse::kReadLockOwner) == 0;
  read.closes_ = request.closes ? request.fh : 0;
  read.proceed(lane);
}

void ReadOperation::fetch(Lane& lane, const HandlePtr& handle) {
  const auto self = lane.reads().take();
  ReadOperation& read = *self;
  uint64_t size = 0;
  {
    const std::scoped_lock lock(handle->inode->mu());
    size = std::min<uint64_t>(handle->inode->size(), Announced::kFileMax);
  }
  read.arm({}, handle->inode, 0, static_cast<uint32_t>(size));
  read.announced_ = handle;
  read.proceed(lane);
}

void ReadOperation::fetch_opened(Lane& lane, const HandlePtr& handle, const fuse::RequestHead& head,
                                 uint32_t size) {
  const auto self = lane.reads().take();
  ReadOperation& read = *self;
  read.arm(head, handle->inode, 0, size);
  read.opened_ = handle->fh;
  read.proceed(lane);
}

void ReadOperation::fetch_piece(Lane& lane, const InodePtr& inode, Streams::Piece piece) {
  const auto self = lane.reads().take();
  ReadOperation& read = *self;
  read.arm({}, inode, piece.offset, piece.length);
  read.is_piece_ = true;
  read.proceed(lane);
}

void ReadOperation::arm(const fuse::RequestHead& head, const InodePtr& inode, uint64_t offset,
                        uint32_t size) {
  rearm(head);
  inode_ = inode;
  offset_ = offset;
  size_ = size;
  restarts_ = ends_ = 0;
  error_ = 0;
  question_ = cut_ = closes_ = opened_ = 0;
  registered_ = fills_pages_ = asked_cache_ = asked_streams_ = is_piece_ = false;
  cut_wait_ = {};
  keeps_ = true;
}

void ReadOperation::proceed(Lane& lane) {
  if (is_answered()) return answer(lane, EINTR);
  if (!gives_up() && ask_first(lane)) return;
  losses_ = lane.context().incarnations().losses();  // before looking at the pieces
  if (wait_for_pieces(lane)) return;
  if (error_ != 0) return answer(lane, error_);
  if (length_ == 0 || (gives_up() && stamp_ == 0)) return answer(lane, 0);
  registered(lane);
  Ahead ahead;
  if (!ask_streams(lane, ahead)) ask_others(lane);
  for (const auto& piece : ahead.pieces) fetch_piece(lane, ahead.inode, piece);
}

void ReadOperation::ask_others(Lane& lane) {
  if (!buffer_) buffer_ = lane.context().memory().read(Memory::size_for(size_));
  if (!buffer_) return gives_up() ? answer(lane, ENOMEM) : lane.when_room(self());
  if (!view_->inline_bytes.empty()) return answer_inline(lane);
  if (!ask_announced(lane) && !ask_cache(lane)) ask_targets(lane);
}

void ReadOperation::answer_inline(Lane& lane) {
  const auto content = std::as_bytes(std::span(view_->inline_bytes));
  const auto from = content.subspan(std::min<uint64_t>(offset_, content.size()));
  const auto there = from.first(std::min<size_t>(from.size(), length_));
  std::ranges::copy(there, buffer_.span().begin());
  std::ranges::fill(buffer_.span().subspan(there.size(), length_ - there.size()), std::byte{0});
  lane.counters().inline_reads.fetch_add(1, std::memory_order_relaxed);
  keeps_ = false;
  answer(lane, 0);
}

void ReadOperation::registered(Lane& lane) {
  if (registered_ || is_for_later()) return;
  registered_ = true;
  lane.context().waiting().put(head().unique, self());
}

// True: proceed() will be called again, or it was answered.
bool ReadOperation::ask_first(Lane& lane) {
  int error = 0;
  {
    const std::scoped_lock lock(inode_->mu());
    begin_near_end(lane.context());
    if (lane.context().leases().holds(*inode_, kLeaseData)) return false;
    without_lease(lane.context());
    if ((inode_->passing & kLeaseData) != 0) {
      inode_->passed = true;
      return false;
    }
    if (question_ != 0 && inode_->asking.ended >= question_) {
      error = inode_->asking.error;
      if (error == 0) return false;
    }
  }
  if (error != 0) {
    answer(lane, error);
    return true;
  }
  registered(lane);
  lane.context().leases().ask(inode_, {self(), offset_, offset_ + size_}, question_);
  return true;
}

// LOCKED inode.
void ReadOperation::without_lease(Context& context) {
  if (fills_pages_ && cut_ == 0 && context.kernel().eof_pages() != nullptr) {
    cut_ = context.kernel().eof_pages()->begin(inode_->ino());
  }
}

bool ReadOperation::waits_for_cut(Lane& lane, std::optional<Event>& event) {
  Cuts& cuts = inode_->cuts;
  const bool is_void = cuts.untold() && length_ != 0 && offset_ + length_ > cuts.level();
  const bool waits = is_void && cut_wait_.wait(*inode_, self(), event, error_);
  if (waits) registered(lane);
  if (waits != pauses_cuts_) cuts.pauses += (pauses_cuts_ = waits) ? 1 : -1;
  return waits;
}

// Also takes what it needs of the inode. True: proceed() will be called again.
bool ReadOperation::wait_for_pieces(Lane& lane) {
  Settled settled;
  const uint64_t end = offset_ + size_;
  {
    std::unique_lock lock(inode_->mu());
    if (fills_pages_ && !lane.context().leases().holds(*inode_, kLeaseData))
      without_lease(lane.context());
    view_ = inode_->view_locked();
    const uint64_t size = inode_->size();
    file_size_ = size;
    stamp_ = lane.context().leases().count() && lane.context().leases().holds(*inode_, kLeaseData)
                 ? inode_->stamp()
                 : 0;
    if (inode_->is_probe && !gives_up()) inode_->probed_bytes += size_;
    length_ =
        offset_ >= size ? 0 : static_cast<uint32_t>(std::min<uint64_t>(size_, size - offset_));
    if (fills_pages_ && length_ != 0) inode_->note_filled(offset_, offset_ + length_);
    if (fills_pages_ && size < end) inode_->cut_end = std::min(inode_->cut_end, size);
    if (cut_ != 0 && size < end &&
        !lane.context().kernel().eof_pages()->cut(inode_->ino(), cut_, size) &&
        ends_++ < kEndsMax) {
      lock.unlock();
      question_ = 0;
      proceed(lane);
      return true;
    }
    if (std::optional<Event> event; waits_for_cut(lane, event)) {
      lock.unlock();
      if (event) lane.context().events().put(std::move(*event));
      return true;
    }
    if (error_ != 0) return false;
    PieceTable& pieces = inode_->pieces();
    if (pieces.unsettled() == 0 || pieces.is_settled(pieces.sequence(), offset_, end)) return false;
    pieces.seal_range(offset_, end, settled);
    registered(lane);
    pieces.wait(self(), pieces.sequence(), offset_, end);
  }
  perform(lane, inode_, settled);
  return true;
}

// True: it was fetched, or will be; then proceed() is called again.
bool ReadOperation::ask_announced(Lane& lane) {
  Context& context = lane.context();
  if (is_for_later() || stamp_ == 0 || !context.prefetched().announced().any()) return false;
  switch (context.prefetched().announced().read(
      {inode_->ino(), stamp_, file_size_, offset_, length_}, buffer_, self())) {
    case Announced::Found::kNo:
      return false;
    case Announced::Found::kWait:
      return true;
    case Announced::Found::kYes:
      break;
  }
  answer(lane, 0);
  fetch_announced(lane);
  return true;
}

// True: it was fetched, or will be; then proceed() is called again.
bool ReadOperation::ask_streams(Lane& lane, Ahead& ahead) {
  const CachedExtent extent{inode_->ino(), stamp_, file_size_, offset_, length_};
  const auto whom = fills_pages_ ? Streams::For::kPages : Streams::For::kProgram;
  if (is_for_later() || !lane.context().prefetched().streams().may_be_of(extent, whom))
    return false;
  const auto found = lane.context().prefetched().streams().read(
      extent, std::exchange(asked_streams_, true) ? Streams::For::kAgain : whom, parts_, self(),
      ahead.pieces, lane.loop().now());
  if (!ahead.pieces.empty()) ahead.inode = inode_;
  if (found == Streams::Found::kYes) answer(lane, 0);
  return found != Streams::Found::kNo;
}

// What the local cache is to keep lies in one buffer.
void ReadOperation::gather(Lane& lane) {
  if (parts_.empty() || lane.context().prefetched().local_cache() == nullptr) return parts_.clear();
  const auto& first = parts_.front();
  if (first.from == 0 && first.length == length_ && first.buffer.use_count() == 1) {
    buffer_ = std::move(*first.buffer);
    buffer_.move_to(Buffer::Account::kRead);
    return parts_.clear();
  }
  if (!buffer_) buffer_ = lane.context().memory().read(Memory::size_for(size_));
  if (!buffer_) {
    stamp_ = 0;
  } else {
    std::byte* place = buffer_.span().data();
    for (const auto& part : parts_) place = std::ranges::copy(part.span(), place).out;
  }
  parts_.clear();
}

// Once. True: the local cache has it all, and is asked.
bool ReadOperation::ask_cache(Lane& lane) {
  LocalCache* const cache = lane.context().prefetched().local_cache();
  if (cache == nullptr || stamp_ == 0 || std::exchange(asked_cache_, true)) return false;
  const CachedExtent extent{inode_->ino(), stamp_, file_size_, offset_, length_};
  return cache->read(lane.index(), extent, buffer_.span(), [&lane, read = self()](bool found) {
    if (!found) return read->ask_targets(lane);
    read->keeps_ = read->is_for_later();
    read->answer(lane, 0);
  });
}

// What was read are the bytes of that stamp if it still is the file's: a change since it began
// would show.
bool ReadOperation::is_of_stamp(Context& context) {
  if (stamp_ == 0) return false;
  const std::scoped_lock lock(inode_->mu());
  return inode_->stamp() == stamp_ && context.leases().holds(*inode_, kLeaseData);
}

void ReadOperation::offer_to_cache(Context& context) {
  if (context.prefetched().local_cache() == nullptr || !keeps_ || !is_of_stamp(context)) return;
  context.prefetched().local_cache()->keep({inode_->ino(), stamp_, file_size_, offset_, length_},
                                           std::move(buffer_));
}

void ReadOperation::ask_targets(Lane& lane) {
  error_ = 0;
  again_ = false;
  pending_ = 1;  // this function's own
  const uint64_t end = offset_ + length_;
  for (uint64_t at = offset_; at < end;) {
    const Span span = first_span(*view_, at, end);
    const auto place = buffer_.span().subspan(at - offset_, span.length);
    at += span.length;
    if (span.object_offset >= limits::kObjectBytesMax) {  // no object can hold that: it is a hole
      std::ranges::fill(place, std::byte{0});
      continue;
    }
    Call* call = lane.make_call();
    call->op = Op::kRead;
    call->target = view_->targets[span.stripe_index];
    call->stripe_index = span.stripe_index;
    call->offset = span.object_offset;
    call->length = span.length;
    call->view = view_;
    call->inode = inode_;
    call->place = place;
    call->owner = shared_from_this();
    call->once = opened_ != 0;  // nobody waits for a server in open(2) who would not in read(2)
    ++pending_;
    lane.submit(call);
  }
  if (--pending_ == 0) finish(lane);
}

void ReadOperation::call_done(Lane& lane, Call& call) {
  note(call);
  if (--pending_ == 0) finish(lane);
}

void ReadOperation::note(const Call& call) {
  if (call.status == Status::kOk ||
      (call.status == Status::kNoObject && !must_exist(*call.view, call.stripe_index))) {
    const auto hole = call.place.subspan(call.received);
    if (!hole.empty()) std::memset(hole.data(), 0, hole.size());
  } else if (call.status == Status::kStaleTruncateEpoch) {
    again_ = true;
  } else if (error_ == 0) {
    error_ = errno_of(call.status);
  }
}

void ReadOperation::finish(Lane& lane) {
  const bool lost = lane.context().incarnations().losses() != losses_;
  if (error_ == 0 && (again_ || lost) && restarts_++ < kRestartsMax) {
    question_ = 0;
    return proceed(lane);
  }
  answer(lane, error_ != 0 ? error_ : (again_ || lost ? EIO : 0));
}

// Of a lease that is not held any more nobody tells us when these pages become wrong.
void ReadOperation::spoil_pages(Context& context) {
  if (cut_ != 0)
    context.kernel().invalidate_pages(inode_->ino(), offset_, size_, std::exchange(cut_, 0));
}

void ReadOperation::announced_came(Lane& lane, int error) {
  const HandlePtr handle = std::exchange(announced_, nullptr);
  const bool is_right = error == 0 && length_ == size_ && is_of_stamp(lane.context());
  Buffer bytes = std::move(buffer_);
  view_.reset();
  inode_.reset();
  client::announced_came(lane, handle, is_right ? stamp_ : 0, length_, std::move(bytes));
}

// Of a file of which nothing came the kernel asks as ever.
void ReadOperation::opened_came(Lane& lane, int error) {
  Context& context = lane.context();
  if (registered_) context.waiting().drop(head().unique);
  const bool is_right = error == 0 && length_ == size_ && stamp_ != 0 && buffer_;
  const bool is_mine = claim();  // else the kernel has the handle, and may have READs under way
  const uint64_t stamp = is_right && is_mine ? stamp_ : 0;
  const auto bytes = stamp != 0 ? buffer_.span().first(length_) : std::span<std::byte>{};
  const bool stored = context.kernel().store_pages(*inode_, stamp, head().nodeid, bytes);
  if (is_mine)
    context.kernel().replier().reply_open(head().channel, head().unique, opened_, stored);
  if (is_right) offer_to_cache(context);
  buffer_.reset();
  view_.reset();
  inode_.reset();
  lane.room();
}

bool ReadOperation::answered_early(Context& context) {
  if (opened_ == 0) return false;
  context.kernel().replier().reply_open(head().channel, head().unique, opened_, false);
  return true;
}

void ReadOperation::piece_came(Lane& lane, int error) {
  const CachedExtent extent{inode_->ino(), stamp_, file_size_, offset_, length_};
  const bool is_right = error == 0 && length_ > 0 && buffer_ && is_of_stamp(lane.context());
  Buffer bytes = std::move(buffer_);
  is_piece_ = false;
  view_.reset();
  inode_.reset();
  client::piece_came(lane, extent, is_right ? std::move(bytes) : Buffer{});
}

void ReadOperation::reply(Context& context) {
  if (parts_.empty()) {
    const iovec piece{buffer_.span().data(), length_};
    return context.kernel().replier().reply_data(head().channel, head().unique,
                                                 std::span(&piece, length_ > 0));
  }
  std::vector<iovec> pieces;
  for (const auto& part : parts_) pieces.push_back({part.span().data(), part.length});
  context.kernel().replier().reply_data(head().channel, head().unique, pieces);
}

// LOCKED inode.
void ReadOperation::begin_near_end(Context& context) {
  if (!fills_pages_ || near_end_) return;
  near_end_ = offset_ + size_ > inode_->size() || !context.leases().holds(*inode_, kLeaseData);
  if (near_end_) inode_->near_end.push_back(offset_);
}

// Nothing is there, and READs of what is before it may say where the file ends. True: proceed()
// will be called when one of them was answered.
bool ReadOperation::waits_for_end(Lane& lane) {
  if (!near_end_ || length_ != 0 || is_answered()) return false;
  registered(lane);
  const std::scoped_lock lock(inode_->mu());
  const auto is_before = [this](uint64_t offset) { return offset < offset_; };
  if (std::ranges::none_of(inode_->near_end, is_before)) return false;
  inode_->behind_end.push_back(self());
  return true;
}

// It was answered. Who waited for that looks again.
std::vector<std::shared_ptr<Operation>> ReadOperation::end_near_end() {
  if (!std::exchange(near_end_, false)) return {};
  const std::scoped_lock lock(inode_->mu());
  inode_->near_end.erase(std::ranges::find(inode_->near_end, offset_));
  return std::exchange(inode_->behind_end, {});
}

void ReadOperation::answer(Lane& lane, int error) {
  if (std::exchange(pauses_cuts_, false)) {
    const std::scoped_lock lock(inode_->mu());
    --inode_->cuts.pauses;
  }
  if (announced_) return announced_came(lane, error);
  if (opened_ != 0) return opened_came(lane, error);
  if (is_piece_) return piece_came(lane, error);
  if (error == 0 && waits_for_end(lane)) return;
  Context& context = lane.context();
  if (registered_) context.waiting().drop(head().unique);
  if (claim()) {
    if (error != 0) {
      context.kernel().replier().reply_error(head().channel, head().unique, error);
    } else {
      reply(context);
    }
  }
  const auto waited = end_near_end();
  spoil_pages(context);
  gather(lane);
  if (error == 0 && length_ > 0) offer_to_cache(context);
  buffer_.reset();
  view_.reset();
  inode_.reset();
  if (closes_ != 0) context.open_files().close_own(std::exchange(closes_, 0));
  lane.room();
  proceed_all(lane, waited);
}

}  // namespace braidfs::client
