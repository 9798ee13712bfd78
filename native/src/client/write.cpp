#include "client/write.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "client/context.h"
#include "client/drain.h"
#include "client/lanes.h"
#include "client/pieces.h"
#include "client/set_ids.h"
#include "client/stale.h"
#include "core/file_time.h"

namespace braidfs::client {

namespace {

constexpr uint32_t kWindowSmall = 64u << 10;
constexpr uint64_t kOffsetMax = INT64_MAX;
constexpr uint32_t kCopyUnlocked = 256u
                                   << 10;  // a part of this size or more gets a piece of its own
// A part of this size or more may stay in the memory into which it was read.
constexpr uint32_t kKeptMin = Memory::kPieceMax / 2;

struct Window {
  uint64_t begin;
  uint32_t capacity;
};

// The place in the file of a buffer for a part that begins at `span`. large: more bytes beside the
// part are expected.
Window window_of(const FileView& view, const Span& span, bool large) {
  const uint64_t chunk_begin = span.chunk * view.chunk_size;
  const uint32_t size = large || span.length > Memory::kPieceMax / 2
                            ? Memory::kPieceMax
                            : std::max(kWindowSmall, Memory::size_for(span.length));
  const uint64_t begin = chunk_begin + (span.begin - chunk_begin) / size * size;
  return {begin,
          static_cast<uint32_t>(std::min<uint64_t>(size, chunk_begin + view.chunk_size - begin))};
}

// The WRITE has noted in the inode what it did. Drains that wait for that go on.
void end_write(Lane& lane, Inode& inode) {
  std::vector<std::shared_ptr<Operation>> waiters;
  {
    const std::scoped_lock lock(inode.mu());
    if (--inode.writing == 0) waiters.swap(inode.writing_waiters);
  }
  proceed_all(lane, waiters);
}

// Notes in the inode what a WRITE did to it. LOCKED inode.
Stale note(Context& context, Inode& inode, const WriteReach& reach, uint32_t kill, bool& grew) {
  grew = inode.wrote(reach.end, file_time_ns(), kill);
  context.commits().note_unclean(inode);
  return stale_after(context, inode, reach, kill, grew);
}

// Copies one WRITE request into pieces. It lives on the stack of write_request().
class WriteRun {
 public:
  WriteRun(Lane& lane, const HandlePtr& handle, const fuse::WriteRequest& request, FileViewPtr view,
           bool shared)
      : lane_(lane),
        context_(lane.context()),
        handle_(handle),
        inode_(handle->inode),
        request_(request),
        end_(request.offset + request.payload.size()),
        view_(std::move(view)),
        sync_(((request.open_flags | handle->open_flags) & O_DSYNC) != 0),
        direct_(((request.open_flags | handle->open_flags) & O_DIRECT) != 0),
        shared_(shared),
        through_(shared || sync_ || context_.memory().is_scarce(lane.loop().now())) {}

  void run();

 private:
  uint64_t put(uint64_t at);
  uint64_t merge(const Span& span);
  uint64_t add(const Span& span);
  bool may_keep_memory(const Span& span) const;
  Window place_of(const Span& span, bool at_once, bool keeps) const;
  uint64_t coalescing_bytes_max() const {
    return context_.settings().dirty_bytes_per_inode_max / 4 * 3;
  }
  Buffer buffer_for(uint32_t size);
  std::span<const std::byte> bytes(uint64_t from, uint64_t to) const {
    return request_.payload.subspan(from - request_.offset, to - from);
  }
  WriteReach reach() const {
    const bool from_page = (request_.write_flags & fuse::kWriteFromCache) != 0;
    return {request_.offset, end_, handle_->goes_past_pages() && !from_page};
  }
  void wait_for_targets();
  Stale note_written();
  void reply(const Stale& stale);
  void watch();

  Lane& lane_;
  Context& context_;
  const HandlePtr& handle_;
  const InodePtr& inode_;
  const fuse::WriteRequest& request_;
  const uint64_t end_;
  FileViewPtr view_;
  const bool sync_;
  const bool direct_;  // its pieces are sent at once and merge with nothing
  const bool shared_;  // this client is not the only writer
  bool through_;       // it is answered when the targets have its bytes
  // The inode has as many dirty bytes as it may have: no further piece goes write-behind.
  bool is_full_ = false;
  bool behind_ = false;  // some bytes went write-behind
  bool sequential_ = false;
  bool coalesces_ = false;  // other WRITEs come beside it
  bool no_memory_ = false;
  uint32_t kill_ = 0;  // kCommitKill*
  Actions actions_;    // to be run after the writer was answered
  std::shared_ptr<WriteOperation> operation_;
};

void WriteRun::run() {
  Inode::SetIds set_ids;
  bool may_have_set_ids;
  {
    const std::scoped_lock lock(inode_->mu());
    sequential_ = request_.offset != 0 && inode_->stream_end == request_.offset;
    coalesces_ = static_cast<bool>(inode_->side_by_side);
    inode_->stream_end = end_;
    is_full_ = inode_->pieces().dirty_bytes() >= context_.settings().dirty_bytes_per_inode_max;
    set_ids = inode_->set_ids;
    may_have_set_ids = inode_->may_have_set_ids();
  }
  if (may_have_set_ids) kill_ = kill_flags(request_, set_ids);
  if (through_) wait_for_targets();
  for (uint64_t at = request_.offset; at < end_ && !no_memory_;) at = put(at);
  Stale stale;
  if (!operation_ || behind_) stale = note_written();
  if (!operation_) end_write(lane_, *inode_);
  if (behind_ && !direct_) watch();  // direct pieces were sent at once, so they do not age
  if (!operation_) reply(stale);
  run_actions(lane_, inode_, actions_);
  if (!operation_) return;
  if (stale) forget(context_, inode_->ino(), stale);
  operation_->piece_done(lane_, no_memory_ ? ENOMEM : 0);
}

void WriteRun::reply(const Stale& stale) {
  const auto answer = [&context = context_, head = request_.head, no_memory = no_memory_,
                       count = static_cast<uint32_t>(request_.payload.size())] {
    if (no_memory) return context.kernel().reply_error(head, ENOMEM);
    context.kernel().replier().reply_write(head.channel, head.unique, count);
  };
  if (!stale) return answer();
  forget(context_, inode_->ino(), stale, answer);
}

void WriteRun::wait_for_targets() {
  through_ = true;
  operation_ = std::make_shared<WriteOperation>(
      request_.head, WriteOperation::Plan{.handle = handle_,
                                          .reach = reach(),
                                          .count = static_cast<uint32_t>(request_.payload.size()),
                                          .kill = kill_,
                                          .sync = sync_,
                                          .shared = shared_});
  context_.waiting().put(request_.head.unique, operation_);
}

// Puts bytes from `at` on into one piece, and returns where the piece ended.
uint64_t WriteRun::put(uint64_t at) {
  const Span span = first_span(*view_, at, end_);
  uint64_t done = at;
  if (!through_ && !direct_ && span.length < kCopyUnlocked) done = merge(span);
  return done == at ? add(span) : done;
}

uint64_t WriteRun::merge(const Span& span) {
  const std::scoped_lock lock(inode_->mu());
  PieceTable& pieces = inode_->pieces();
  const PiecePtr piece = pieces.mergeable(span.chunk, span.begin, span.begin + span.length);
  if (!piece) return span.begin;
  const uint64_t end = std::min(span.begin + span.length, piece->limit());
  std::memcpy(piece->bytes(span.begin, end).data(), bytes(span.begin, end).data(),
              end - span.begin);
  inode_->side_by_side.note(piece->borders(span.begin, end));
  pieces.merged(piece, span.begin, end, actions_);
  behind_ = true;
  return end;
}

Buffer WriteRun::buffer_for(uint32_t size) {
  if (!through_) {
    if (Buffer buffer = context_.memory().dirty(size, false)) return buffer;
    context_.lanes().send_partial();
    context_.lanes().hurry();
    wait_for_targets();
  }
  return context_.memory().dirty(size, true);
}

// Whether the bytes may stay in the memory into which they were read: they begin at a block, are
// the only part of the request, and fit into one piece.
bool WriteRun::may_keep_memory(const Span& span) const {
  if (span.length != request_.payload.size() || span.length < kKeptMin ||
      !lane_.is_received(request_.payload))
    return false;
  if ((span.begin | span.length) % limits::kBlockSize == 0) return true;
  const Window window = window_of(*view_, span, true);
  return span.begin % limits::kBlockSize == 0 &&
         span.begin + span.length <= window.begin + window.capacity;
}

// The window of a new piece. Memory that is kept begins with its bytes. If a direct write of 1 MiB
// does not begin at a page of memory, the kernel splits it, and the bytes that are missing to whole
// blocks come next.
Window WriteRun::place_of(const Span& span, bool at_once, bool keeps) const {
  if (at_once) return {span.begin, std::min(span.length, Memory::kPieceMax)};
  const Window window = window_of(*view_, span, sequential_ || coalesces_);
  if (!keeps) return window;
  return {span.begin, static_cast<uint32_t>(window.begin + window.capacity - span.begin)};
}

uint64_t WriteRun::add(const Span& span) {
  if (is_full_ && !through_) wait_for_targets();
  const bool keeps = may_keep_memory(span);
  const bool own = through_ || direct_ || (keeps && span.length % limits::kBlockSize == 0);
  const Window window = place_of(span, own, keeps);
  auto piece = std::make_shared<Piece>();
  piece->buffer = buffer_for(Memory::size_for(window.capacity));
  const bool at_once = own || through_;  // buffer_for() may have set through_
  no_memory_ = !piece->buffer;
  if (no_memory_) return span.begin;
  piece->window = window.begin;
  piece->capacity = window.capacity;
  piece->coalesces = coalesces_ && !own;
  piece->begin = span.begin;
  piece->end = std::min(span.begin + span.length, piece->limit());
  piece->chunk = span.chunk;
  piece->stripe_index = span.stripe_index;
  piece->first_written = lane_.loop().now();
  if (keeps) {
    lane_.keep_received(piece->buffer);
  } else {
    const auto from = bytes(piece->begin, piece->end);
    std::memcpy(piece->bytes(piece->begin, piece->end).data(), from.data(), from.size());
  }
  if (through_) {
    piece->waiter = operation_;
    operation_->piece_added();
  } else {
    behind_ = true;
  }
  const uint64_t end = piece->end;
  const std::scoped_lock lock(inode_->mu());
  if (!own) inode_->side_by_side.note(inode_->pieces().borders(*piece));
  if (piece->coalesces) inode_->pieces().make_way(coalescing_bytes_max(), actions_);
  inode_->pieces().add(piece, actions_);
  if (at_once) inode_->pieces().seal(piece, actions_);
  return end;
}

Stale WriteRun::note_written() {
  bool grew = false;
  const std::scoped_lock lock(inode_->mu());
  return note(context_, *inode_, reach(), kill_, grew);
}

void WriteRun::watch() {
  {
    const std::scoped_lock lock(inode_->mu());
    if (inode_->watched || inode_->pieces().unacknowledged() == 0) return;
    inode_->watched = true;
  }
  lane_.watch_age(inode_);
}

}  // namespace

namespace {

// kTooFar: the lease is held, but the quotas are not known to allow so large a file.
enum class Mode : uint8_t { kOwn, kShared, kAsk, kTooFar };

bool runs(Mode mode) { return mode == Mode::kOwn || mode == Mode::kShared; }

// Whether the WRITE makes the file larger than quotas are known to allow. Within the present size
// nothing grows. LOCKED inode.
bool grows_too_far(Context& context, const Inode& inode, const fuse::WriteRequest& request) {
  const uint64_t limit = inode.size_limit.load(std::memory_order_relaxed);
  if (limit == Inode::kUnlimited) return false;
  const bool at_end = context.leases().count() && appends(request);
  const uint64_t end = (at_end ? inode.size() : request.offset) + request.payload.size();
  return end > limit && end > inode.size();
}

// Decides whether the WRITE may run; if so, the caller must call end_write() later. A file that
// lies in its inode's record gets objects from the OPEN that a lease request makes. LOCKED inode.
Mode begin_write(Context& context, Inode& inode, const fuse::WriteRequest& request) {
  if (inode.lies_inline()) return Mode::kAsk;
  const bool own = context.leases().holds(inode, kLeaseDataExclusive);
  if (!own && (inode.recalling & kLeaseDataExclusive) == 0) return Mode::kAsk;
  if (grows_too_far(context, inode, request)) return Mode::kTooFar;
  if (!own) inode.used_during_recall = true;
  ++inode.writing;
  return own ? Mode::kOwn : Mode::kShared;
}

void refuse(Lane& lane, const fuse::RequestHead& head, int error) {
  lane.context().kernel().reply_error(head, error);
}

// An append goes to the present end of the file. Unless the handle is direct, the kernel has put
// the bytes into its pages at another offset, so these pages are invalidated. (Otherwise it has no
// pages behind the end that it knows, and an invalidation could void the answer to the GETATTR of
// the next read.)
bool place_at_end(Context& context, const HandlePtr& handle, fuse::WriteRequest& request) {
  Inode& inode = *handle->inode;
  uint64_t size;
  {
    const std::scoped_lock lock(inode.mu());
    size = inode.size();
  }
  if (size == request.offset) return true;
  if (size > kOffsetMax - request.payload.size()) return false;
  request.offset = size;
  if (!handle->direct) context.kernel().invalidate_pages(inode.ino(), 0, 0);
  return true;
}

// Cuts the request to what can be stored, as a local file system does: a WRITE is refused only if
// none of it can be stored. But pages of the kernel are written whole or not at all.
bool cut_to_storable(const FileView& view, fuse::WriteRequest& request) {
  const uint64_t end = storable_end(view);
  if (request.offset >= end) return false;
  if (request.payload.size() <= end - request.offset) return true;
  if ((request.write_flags & fuse::kWriteFromCache) != 0) return false;
  request.payload = request.payload.first(end - request.offset);
  return true;
}

void run(Lane& lane, const HandlePtr& handle, fuse::WriteRequest& request, bool shared) {
  Context& context = lane.context();
  FileViewPtr view = handle->inode->view();
  const bool has_place =
      !context.leases().count() || !appends(request) || place_at_end(context, handle, request);
  if (!has_place || !cut_to_storable(*view, request)) {
    end_write(lane, *handle->inode);
    return refuse(lane, request.head, EFBIG);
  }
  if (shared && !handle->direct) {
    context.kernel().invalidate_pages(handle->inode->ino(), request.offset, request.payload.size());
  }
  WriteRun(lane, handle, request, std::move(view), shared).run();
}

}  // namespace

void write_request(Lane& lane, const HandlePtr& handle, const fuse::WriteRequest& request) {
  int error;
  Mode mode;
  {
    const std::scoped_lock lock(handle->inode->mu());
    error = handle->inode->report(handle->error_seen);
    mode = error != 0 ? Mode::kAsk : begin_write(lane.context(), *handle->inode, request);
  }
  if (error != 0) return refuse(lane, request.head, error);
  if (!runs(mode)) return std::make_shared<AskingWrite>(handle, request)->ask(lane);
  fuse::WriteRequest placed = request;
  run(lane, handle, placed, mode == Mode::kShared);
}

AskingWrite::AskingWrite(HandlePtr handle, const fuse::WriteRequest& request)
    : handle_(std::move(handle)),
      payload_(request.payload.begin(), request.payload.end()),
      request_(request) {
  request_.payload = payload_;
  rearm(request.head);
}

void AskingWrite::ask(Lane& lane) {
  if (lease_requests_++ == 0) lane.context().waiting().put(head().unique, shared_from_this());
  if (ask_with_bytes(lane.context())) return;
  lane.context().leases().ask(handle_->inode, waiter(), lease_request_);
}

void AskingWrite::proceed(Lane& lane) {
  if (is_answered()) return;
  if (answer_) return inline_answered(lane);
  int error = 0;
  Mode mode;
  {
    const std::scoped_lock lock(handle_->inode->mu());
    const Inode::Asking& asking = handle_->inode->asking;
    mode = begin_write(lane.context(), *handle_->inode, request_);
    if (!runs(mode) && asking.ended >= lease_request_) {
      error = asking.error;
      if (error == 0 && mode == Mode::kTooFar)
        error = EDQUOT;  // the answer has not allowed it either
    }
  }
  if (!runs(mode) && error == 0 && lease_requests_ == kLeaseRequestsMax) error = EIO;
  if (!runs(mode) && error == 0) return ask(lane);
  lane.context().waiting().drop(head().unique);
  if (!claim()) {
    if (runs(mode)) end_write(lane, *handle_->inode);
    return;
  }
  if (error != 0) return refuse(lane, head(), error);
  run(lane, handle_, request_, mode == Mode::kShared);
}

WriteOperation::WriteOperation(const fuse::RequestHead& head, Plan plan) : plan_(std::move(plan)) {
  rearm(head);
}

void WriteOperation::piece_done(Lane& lane, int error) {
  if (error != 0) error_ = error;
  if (--pending_ == 0) finish(lane);
}

void WriteOperation::finish(Lane& lane) {
  Context& context = lane.context();
  context.waiting().drop(head().unique);
  bool grew = false;
  Stale stale;
  if (error_ == 0) {
    const std::scoped_lock lock(plan_.handle->inode->mu());
    stale = note(context, *plan_.handle->inode, plan_.reach, plan_.kill, grew);
  }
  end_write(lane, *plan_.handle->inode);
  if (!stale) return tell(lane, grew);
  auto self = std::static_pointer_cast<WriteOperation>(shared_from_this());
  forget(context, plan_.handle->inode->ino(), stale,
         [self, &lane, grew] { lane.post([self, grew](Lane& at) { self->tell(at, grew); }); });
}

void WriteOperation::tell(Lane& lane, bool grew) {
  Context& context = lane.context();
  if (!claim()) return;
  if (error_ != 0) return context.kernel().reply_error(head(), error_);
  if (plan_.sync || (plan_.shared && grew)) {
    return DrainOperation::for_write(lane, head(), plan_.handle, {plan_.count, plan_.sync});
  }
  context.kernel().replier().reply_write(head().channel, head().unique, plan_.count);
}

}  // namespace braidfs::client
