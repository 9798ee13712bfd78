#include "client/core.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <thread>

#include "client/copy.h"
#include "client/drain.h"
#include "client/ranges.h"
#include "client/read.h"
#include "client/write.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;

// A signal that a request would outrun anyway is no reason for EINTR, which programs do not expect
// of a file: only a request that still waits after this long is given up.
constexpr int64_t kReopenEvery_ms = 1000;

int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Core::Core(const CoreSettings& settings)
    : settings_(settings), memory_(settings.memory, settings.lane_count) {
  for (uint32_t index = 0; index < settings.lane_count; ++index) {
    lanes_.push_back(std::make_unique<Lane>(*this, index));
  }
}

Core::~Core() { stop(0); }

void Core::start() {
  for (const auto& lane : lanes_) lane->start();
}

void Core::stop(uint32_t deadline_ms) {
  if (stopped_.exchange(true)) return;
  pause_fetching(true);
  send_all_partial();
  const auto deadline = Clock::now() + milliseconds(deadline_ms);
  while (!quiet() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
  abort();
  for (const auto& lane : lanes_) lane->stop();
  if (local_cache_) local_cache_->stop();
}

int Core::fault() const noexcept {
  for (const auto& lane : lanes_) {
    if (const int fault = lane->loop().fault(); fault != 0) return fault;
  }
  return 0;
}

// Nothing is on its way to a target or to the metaserver.
bool Core::quiet() {
  const std::scoped_lock lock(commits_mu_);
  return commits_.empty() && memory_.account(Buffer::Account::kDirty) == 0;
}

// ---- fuse::DataHandler ----

void Core::read(fuse::LaneContext& context, const fuse::ReadRequest& request) {
  Lane& lane = *lanes_[context.index];
  const HandlePtr handle = handles_.find(request.fh);
  if (!handle) return replier_->reply_error(request.head.channel, request.head.unique, EBADF);
  lane.counters().reads.fetch_add(1, std::memory_order_relaxed);
  lane.counters().bytes_read.fetch_add(request.size, std::memory_order_relaxed);
  ReadOperation::start(lane, lane.make_read(), *handle, request);
}

void Core::write(fuse::LaneContext& context, const fuse::WriteRequest& request) {
  Lane& lane = *lanes_[context.index];
  const HandlePtr handle = handles_.find(request.fh);
  if (!handle) return replier_->reply_error(request.head.channel, request.head.unique, EBADF);
  lane.counters().writes.fetch_add(1, std::memory_order_relaxed);
  lane.counters().bytes_written.fetch_add(request.payload.size(), std::memory_order_relaxed);
  write_request(lane, handle, request);
}

std::span<std::byte> Core::landing(fuse::LaneContext& context, size_t size) {
  if (size > Memory::kPieceMax) return {};
  return lanes_[context.index]->landing();
}

void Core::flush(fuse::LaneContext& context, const fuse::FlushRequest& request) {
  const HandlePtr handle = handles_.find(request.fh);
  // Its file was lost with the process before this one: close(2) is the last to say so.
  if (!handle) return replier_->reply_error(request.head.channel, request.head.unique, EBADF);
  int error = 0;
  bool clean = (handle->open_flags & O_ACCMODE) == O_RDONLY;
  if (!clean) {
    Inode& inode = *handle->inode;
    const std::scoped_lock lock(inode.mu());
    clean = inode.pieces().unsettled() == 0 && !inode.committing && !inode.written();
    uint64_t only_told = handle->error_seen;  // told, not used up: DrainOperation::finish says why
    if (clean) error = inode.report(only_told);
  }
  if (clean) return replier_->reply_error(request.head.channel, request.head.unique, error);
  DrainOperation::for_flush(*lanes_[context.index], request.head, handle);
}

bool Core::is_last(Inode& inode) {
  const std::scoped_lock lock(inode.mu());
  return inode.handles <= 1;
}

void Core::release(fuse::LaneContext& context, const fuse::ReleaseRequest& request) {
  if (passthrough_) passthrough_->closed(request.fh);
  const HandlePtr handle = handles_.take(request.fh);
  if (!handle) return replier_->reply_error(request.head.channel, request.head.unique, 0);
  if (announced_.any()) announced_.closed(handle->inode->ino());
  if (streams_.any() && is_last(*handle->inode)) streams_.closed(handle->inode->ino());
  DrainOperation::for_release(*lanes_[context.index], request.head, handle);
}

void Core::fsync(fuse::LaneContext& context, const fuse::FsyncRequest& request) {
  const HandlePtr handle = handles_.find(request.fh);
  if (!handle) return replier_->reply_error(request.head.channel, request.head.unique, EBADF);
  DrainOperation::for_fsync(*lanes_[context.index], request.head, handle);
}

std::optional<fuse::Waiting> Core::waiting(uint64_t unique) {
  const std::shared_ptr<Operation> operation = waiting_.find(unique);
  if (!operation) return std::nullopt;
  using Ends = fuse::Waiting::Ends;
  return fuse::Waiting{operation->head().pid,
                       operation->is_read() ? Ends::kWhenAsked : Ends::kByFatalSignal};
}

bool Core::interrupt(uint64_t unique) {
  const std::shared_ptr<Operation> operation = waiting_.find(unique);
  if (operation) answer_error(*operation, EINTR);
  return operation != nullptr;
}

bool Core::is_ahead(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->committing || inode->written();
}

bool Core::is_busy(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->handles > 0 || inode->committing || inode->written();
}

std::optional<Core::Ahead> Core::before_setting(uint64_t ino, bool sets_mtime) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode || !leases_count()) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  if (inode->passing != 0 || inode->committing || inode->asking.under_way || inode->cuts.untold() ||
      !holds(*inode, kLeaseDataExclusive)) {
    return std::nullopt;
  }
  const Written written = inode->written().value_or(Written{});
  if ((written.flags & kCommitKillSuidgid) != 0) return std::nullopt;
  const Ahead ahead{inode->size(), written.mtime_ns};
  if (sets_mtime) {
    inode->forget_written_time();
    inode->birth.time_set = true;
  }
  return ahead;
}

void Core::set_ids_put(uint64_t ino, uint32_t mode, uint32_t gid) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return;
  const std::scoped_lock lock(inode->mu());
  inode->note_set_ids(mode, gid);
}

void Core::answer_error(Operation& operation, int error) noexcept {
  if (!operation.claim()) return;
  waiting_.drop(operation.head().unique);
  if (operation.answered_early(*this)) return;
  replier_->reply_error(operation.head().channel, operation.head().unique, error);
}

// ---- the cluster ----

void Core::node_put(uint32_t node) {
  for (const auto& lane : lanes_) {
    lane->post([node](Lane& at) { at.node_put(node); });
  }
}

void Core::target_put(uint32_t target, uint32_t node) {
  for (const auto& lane : lanes_) {
    lane->post([target, node](Lane& at) { at.target_put(target, node); });
  }
}

void Core::target_state(uint32_t target, bool is_up) {
  for (const auto& lane : lanes_) {
    lane->post([target, is_up](Lane& at) { at.target_state(target, is_up); });
  }
}

bool Core::connection_put(uint32_t lane, uint32_t node, net::Socket socket,
                          std::shared_ptr<rdma::Channel> channel) {
  if (lane >= lanes_.size()) return false;
  auto shared = std::make_shared<net::Socket>(std::move(socket));
  lanes_[lane]->post(
      [node, shared, channel](Lane& at) { at.connection_put(node, std::move(*shared), channel); });
  return true;
}

bool Core::connection_failed(uint32_t lane, uint32_t node) {
  if (lane >= lanes_.size()) return false;
  lanes_[lane]->post([node](Lane& at) { at.connection_failed(node); });
  return true;
}

// ---- tables ----

bool Core::inode_put(Bytes attributes, Bytes layout, Bytes capability) {
  const auto decoded = decode_attributes(attributes);
  auto view = decode_view(layout, capability);
  if (!decoded || !view) return false;
  const uint64_t ino = decoded->ino;
  const auto shared = std::make_shared<const FileView>(std::move(*view));
  Settled settled;  // released pieces only: nothing to perform
  while (const InodePtr inode =
             inodes_.find_or(ino, [&] { return std::make_shared<Inode>(ino); })) {
    if (inode->put(*decoded, shared, settled)) return true;
  }  // else a lane, done with what was dropped, took it out of the table just now
  return false;
}

bool Core::inode_resize(Bytes attributes, Bytes layout, Bytes capability) {
  const auto decoded = decode_attributes(attributes);
  auto view = decode_view(layout, capability);
  if (!decoded || !view) return false;
  const InodePtr inode = inodes_.find(decoded->ino);
  if (!inode) return inode_put(attributes, layout, capability);
  auto settled = std::make_shared<Settled>();
  inode->resize(*decoded, std::move(*view), *settled);
  if (settled->empty()) return true;
  lane_of(decoded->ino).post([inode, settled](Lane& at) { perform(at, inode, *settled); });
  return true;
}

bool Core::view_put(uint64_t ino, Bytes layout, Bytes capability) {
  auto view = decode_view(layout, capability);
  const InodePtr inode = inodes_.find(ino);
  return view && inode && inode->view_put(std::make_shared<const FileView>(std::move(*view)));
}

void Core::inode_drop(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return;
  {
    const std::scoped_lock lock(inode->mu());
    inode->dropped = true;
  }
  inode_idle(inode);
}

// Forgets the inode if Python dropped it and nothing holds it any more.
void Core::inode_idle(const InodePtr& inode) {
  {
    const std::scoped_lock lock(inode->mu());
    if (inode->is_clean()) record_.drop(inode->noted);
    if (!inode->dropped) return;
  }
  inodes_.take_if(inode->ino(), [&](Inode& entry) {
    const std::scoped_lock lock(entry.mu());
    entry.gone = entry.dropped && !entry.busy();
    if (entry.gone) record_.drop(entry.noted);
    return entry.gone;
  });
}

std::optional<Written> Core::inode_written(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  return inode->uncommitted();
}

std::optional<Written> Core::inode_take(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  return inode->take_written();
}

void Core::size_limit_put(uint64_t ino, uint64_t limit) {
  if (const InodePtr inode = inodes_.find(ino)) inode->size_limit = limit;
}

bool Core::handle_put(uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return enter({.fh = fh, .inode = inode, .open_flags = open_flags, .direct = direct});
}

// Needs the inode's mutex.
bool Core::enter(Handle handle) {
  Inode& inode = *handle.inode;
  handle.error_seen = inode.error_seen_at_open();
  bool made = false;
  const uint64_t fh = handle.fh;
  const HandlePtr entry = handles_.find_or(fh, [&] {
    made = true;
    handle.noted = record_.put({.fh = fh,
                                .ino = inode.ino(),
                                .open_flags = handle.open_flags,
                                .direct = handle.direct,
                                .kind = OpenRecord::Kind::kHandle});
    return std::make_shared<Handle>(std::move(handle));
  });
  if (!entry || !made) return false;
  ++inode.handles;
  inode.past_pages += entry->writes_past_pages() ? 1 : 0;
  inode.dropped = false;
  return true;
}

void Core::handle_closed(Handle& handle) {
  record_.drop(handle.noted);
  {
    const std::scoped_lock lock(handle.inode->mu());
    --handle.inode->handles;
    if (handle.writes_past_pages() && --handle.inode->past_pages == 0) handle.inode->filled = {};
    if (std::exchange(handle.inode->is_probe, false)) {
      whole_reads_.judge(handle.inode->probed_bytes, handle.inode->size());
      send_fetches();
    }
    Inode::Birth& birth = handle.inode->birth;
    if (birth.untaken && birth.fh == handle.fh) {  // Python never hears of the handle
      birth.told.is_open = false;
      return;
    }
    if (handle.own) {
      --handle.inode->own_handles;
      if (handle.inode->granted && handle.inode->own_handles == 0) {
        handle.inode->kept = handle.inode->granted = false;
        handle.inode->dropped = handle.inode->handles == 0;
        return;
      }
      if (handle.inode->kept) return;
    }
  }
  events_.put({.kind = EventKind::kRelease,
               .ino = handle.inode->ino(),
               .a = static_cast<int64_t>(handle.fh),
               .b = handle.open_flags});
}

// ---- leases ----

void Core::lease_until(Clock::time_point until) noexcept {
  lease_until_ = until.time_since_epoch().count();
}

bool Core::holds(const Inode& inode, uint32_t flags) const noexcept {
  const Clock::rep until = lease_until_;
  if (until == kLeasesDoNotCount) return true;
  return (inode.lease & flags) != 0 && Clock::now().time_since_epoch().count() < until;
}

bool Core::inode_lease(uint64_t ino, uint32_t flags, uint32_t passing) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return false;
  std::vector<Inode::Waiter> waiting;
  bool passed;
  bool is_cut;  // which could not be told: it would cut what others write
  {
    const std::scoped_lock lock(inode->mu());
    inode->lease = flags;
    inode->passing = passing;
    is_cut = ((flags | passing) & kLeaseDataExclusive) == 0 && inode->cuts.untold();
    if ((flags & kLeaseData) == 0) inode->forget_stamp();
    if (passing != 0) waiting = inode->take_asking();
    passed = std::exchange(inode->passed, !waiting.empty());
  }
  if (is_cut) lose(inode);
  wake(ino, std::move(waiting));
  return passed;
}

void Core::wake(uint64_t ino, std::vector<Inode::Waiter> waiting) {
  if (waiting.empty()) return;
  lane_of(ino).post([waiting = std::move(waiting)](Lane& at) {
    for (const Inode::Waiter& waiter : waiting) waiter.operation->proceed(at);
  });
}

void Core::ask(const InodePtr& inode, Inode::Waiter waiter, uint64_t& question) {
  const std::scoped_lock lock(inode->mu());
  Inode::Asking& asking = inode->asking;
  question = asking.begun + 1;
  const uint64_t at_end = inode->size() + (waiter.end - waiter.begin);  // of an append
  const uint64_t end = std::max(waiter.end, at_end);
  asking.waiting.push_back(std::move(waiter));
  if (std::exchange(asking.under_way, true)) return;
  ++asking.begun;
  events_.put({.kind = EventKind::kAsk, .ino = inode->ino(), .a = static_cast<int64_t>(end)});
}

void Core::inode_asked(uint64_t ino, int error) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return;
  std::vector<Inode::Waiter> waiting;
  {
    const std::scoped_lock lock(inode->mu());
    inode->asking.error = error;
    inode->asking.under_way = false;
    inode->asking.ended = inode->asking.begun;
    if (const auto answer = std::exchange(inode->asking.inline_answer, nullptr)) {
      answer->came = true;
      answer->error = error;
    }
    waiting = inode->take_asking();
  }
  wake(ino, std::move(waiting));
}

std::vector<std::pair<uint64_t, uint64_t>> Core::asked_ranges(uint64_t ino) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return ranges;
  const std::scoped_lock lock(inode->mu());
  for (const Inode::Waiter& waiter : inode->asking.waiting)
    ranges.emplace_back(waiter.begin, waiter.end);
  return ranges;
}

bool Core::inode_lost(uint64_t ino) {
  const InodePtr inode = inodes_.find(ino);
  return inode && lose(inode) == Inode::Loss::kWritten;
}

std::vector<std::pair<uint64_t, bool>> Core::inodes_lost() {
  std::vector<std::pair<uint64_t, bool>> losses;
  for (const InodePtr& inode : inodes_.all()) {
    const Inode::Loss loss = lose(inode);
    if (loss != Inode::Loss::kNone)
      losses.emplace_back(inode->ino(), loss == Inode::Loss::kWritten);
  }
  return losses;
}

Inode::Loss Core::lose(const InodePtr& inode) {
  auto settled = std::make_shared<Settled>();
  const Inode::Loss loss = inode->lose(*settled);
  if (!settled->empty()) {
    lane_of(inode->ino()).post([inode, settled](Lane& at) { perform(at, inode, *settled); });
  }
  inode_idle(inode);
  return loss;
}

void Core::spoil_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read,
                       std::function<void()> then) {
  if (spoil_pages_) return spoil_pages_(ino, offset, length, read, std::move(then));
  if (then) then();
}

// ---- waiting for targets and for Python ----

void Core::drain(uint64_t token, uint64_t ino, bool sync, bool commit) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode) return events_.put({.kind = EventKind::kDone, .token = token, .ino = ino});
  lane_of(ino).post([token, inode, sync, commit](Lane& at) {
    DrainOperation::for_token(at, token, inode, {sync, commit});
  });
}

void Core::barrier(uint64_t token) {
  auto left = std::make_shared<std::atomic<size_t>>(lanes_.size());
  for (const auto& lane : lanes_) {
    lane->post([this, left, token](Lane&) {
      if (--*left == 0) events_.put({.kind = EventKind::kDone, .token = token});
    });
  }
}

bool Core::punch(uint64_t token, uint64_t ino, uint64_t begin, uint64_t end) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode || begin >= end || end > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  lane_of(ino).post([token, inode, begin, end](Lane& at) {
    PunchOperation::start(at, token, inode, begin, end);
  });
  return true;
}

bool Core::copy(uint64_t token, const Extent& from, const Extent& to, uint64_t length,
                bool only_reach) {
  const InodePtr source = inodes_.find(from.ino);
  const InodePtr sink = inodes_.find(to.ino);
  const auto end = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!source || !sink || length == 0 || length > end - std::min(end, from.begin) ||
      length > end - std::min(end, to.begin) ||
      (from.begin | to.begin | length) % limits::kBlockSize != 0) {
    return false;
  }
  lane_of(to.ino).post([=](Lane& at) {
    CopyOperation::start(at, token, {source, sink, from.begin, to.begin, length}, only_reach);
  });
  return true;
}

bool Core::seek(uint64_t token, uint64_t ino, uint64_t from, bool hole) {
  const InodePtr inode = inodes_.find(ino);
  if (!inode || from > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  lane_of(ino).post(
      [token, inode, from, hole](Lane& at) { SeekOperation::start(at, token, inode, from, hole); });
  return true;
}

uint64_t Core::commit_begin(std::shared_ptr<DrainOperation> operation) {
  const std::scoped_lock lock(commits_mu_);
  commits_.emplace(++commit_token_, std::move(operation));
  return commit_token_;
}

bool Core::commit_done(uint64_t token, Status status, Bytes attributes) {
  std::shared_ptr<DrainOperation> operation;
  {
    const std::scoped_lock lock(commits_mu_);
    const auto found = commits_.find(token);
    if (found == commits_.end()) return false;
    operation = std::move(found->second);
    commits_.erase(found);
  }
  const auto decoded = decode_attributes(attributes);
  lanes_[operation->lane_index()]->post(
      [operation, status, decoded](Lane& at) { operation->commit_answered(at, status, decoded); });
  return true;
}

size_t Core::abort() {
  size_t count = 0;
  for (const auto& operation : waiting_.all()) {
    count += operation->is_answered() ? 0 : 1;
    answer_error(*operation, EIO);
  }
  for (const auto& lane : lanes_) {
    lane->post([](Lane& at) { at.abort_calls(); });
  }
  return count;
}

void Core::hurry() {
  for (const auto& lane : lanes_) lane->hurry();
}

void Core::send_all_partial() {
  if (sending_partial_.exchange(true)) return;
  auto left = std::make_shared<std::atomic<size_t>>(lanes_.size());
  for (const auto& lane : lanes_) {
    lane->post([this, left](Lane& at) {
      at.send_partial_pieces();
      if (--*left == 0) sending_partial_ = false;
    });
  }
}

Clock::time_point Core::deadline_after(Clock::time_point now) const noexcept {
  return settings_.timeout_ms == 0 ? Clock::time_point::max()
                                   : now + milliseconds(settings_.timeout_ms);
}

void Core::capability_refused(Inode& inode) {
  const int64_t now = now_ms();
  int64_t last = inode.reopen_asked_ms;
  if (now - last < kReopenEvery_ms || !inode.reopen_asked_ms.compare_exchange_strong(last, now)) {
    return;
  }
  events_.put({.kind = EventKind::kReopen, .ino = inode.ino()});
}

}  // namespace braidfs::client
