#include "client/core.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>
#include <thread>

#include "client/copy.h"
#include "client/cutting.h"
#include "client/drain.h"
#include "client/opened_fetch.h"
#include "client/pieces.h"
#include "client/prefetching.h"
#include "client/ranges.h"
#include "client/read.h"
#include "client/server_fetch.h"
#include "client/write.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;

constexpr LaneDuties kDuties{.send_aged = send_aged,
                             .send_partial = send_partial,
                             .sync = DrainOperation::for_background,
                             .resend_lost = resend_lost};

}  // namespace

Core::Core(const CoreSettings& settings)
    : context_(settings, lanes_), lanes_(context_, settings.lane_count, kDuties) {
  context_.open_files().probe_closed([this](uint64_t bytes_read, uint64_t size) {
    context_.prefetcher().whole_small_files().probed(bytes_read, size);
    tell_servers(context_);
  });
}

Core::~Core() { stop(0); }

void Core::stop(uint32_t deadline_ms) {
  if (!context_.begin_stopping()) return;
  pause_fetching(true);
  lanes_.send_partial();
  const auto deadline = Clock::now() + milliseconds(deadline_ms);
  while (!quiet() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
  abort();
  lanes_.stop();
  for (const InodePtr& inode : context_.inodes().all()) {
    const auto waiters = [&] {
      const std::scoped_lock lock(inode->mu());
      return inode->take_waiters();
    }();
  }
  if (local_cache_) local_cache_->stop();
}

// Whether nothing is under way to a target or to the metaserver. Bytes go to the targets first, so
// they are checked first.
bool Core::quiet() {
  return context_.memory().account(Buffer::Account::kDirty) == 0 && context_.commits().none();
}

size_t Core::abort() {
  size_t count = 0;
  for (const auto& operation : context_.waiting().all()) {
    count += operation->is_answered() ? 0 : 1;
    answer_error(*operation, EIO);
  }
  lanes_.post([](Lane& at) { at.abort_calls(); });
  return count;
}

// ---- the local cache and passthrough ----

bool Core::use_cache(const cache::StoreSettings& settings, std::string& reason) {
  auto opened = cache::Cache::open(settings, reason);
  if (!opened) return false;
  std::vector<net::EventLoop*> loops;
  for (uint32_t index = 0; index < lanes_.count(); ++index) loops.push_back(&loop(index));
  local_cache_ = std::make_unique<LocalCache>(std::move(opened), loops);
  context_.local_cache(*local_cache_);
  return true;
}

void Core::use_passthrough(BackingCalls calls) {
  passthrough_ = std::make_unique<Passthrough>(copies(), record(), std::move(calls));
}

void Core::start_passthrough() {
  if (cache::Copies* const made = copies()) made->start();
}

cache::Copies* Core::copies() noexcept {
  return local_cache_ ? local_cache_->cache().copies() : nullptr;
}

fuse::PassthroughChoice Core::choose_passthrough(uint64_t ino, uint64_t fh, fuse::Sealing sealing) {
  using fuse::PassthroughChoice;
  if (!passthrough_) return {};
  const HandlePtr handle = context_.open_files().find(fh);
  Passthrough::Opened opened{.file = {.ino = ino}, .fh = fh};
  if (handle) {
    Inode& inode = *handle->inode;
    const Leases& leases = context_.leases();
    const std::scoped_lock lock(inode.mu());
    opened.file.size = inode.size();
    opened.file.stamp = inode.record_stamp();
    opened.is_leased =
        leases.count() && leases.holds(inode, kLeaseData) && inode.stamp() == inode.record_stamp();
    opened.is_certain = sealing != fuse::Sealing::kUnknown;
    opened.is_immutable = sealing == fuse::Sealing::kAsOpened
                              ? inode.is_immutable()
                              : sealing == fuse::Sealing::kImmutable;
    opened.is_direct = handle->goes_past_pages();
  }
  const PassthroughChoice choice = passthrough_->opened(opened);
  if (choice.way == PassthroughChoice::Way::kUpcall || choice.way == PassthroughChoice::Way::kStale)
    context_.open_files().close_own(fh);
  return choice;
}

// ---- fuse::DataHandler ----

void Core::read(fuse::LaneContext& at, const fuse::ReadRequest& request) {
  Lane& lane = lanes_.at(at.index);
  const HandlePtr handle = context_.open_files().find(request.fh);
  if (!handle) return context_.kernel().reply_error(request.head, EBADF);
  lane.counters().reads.fetch_add(1, std::memory_order_relaxed);
  lane.counters().bytes_read.fetch_add(request.size, std::memory_order_relaxed);
  ReadOperation::start(lane, *handle, request);
}

void Core::write(fuse::LaneContext& at, const fuse::WriteRequest& request) {
  Lane& lane = lanes_.at(at.index);
  const HandlePtr handle = context_.open_files().find(request.fh);
  if (!handle) return context_.kernel().reply_error(request.head, EBADF);
  lane.counters().writes.fetch_add(1, std::memory_order_relaxed);
  lane.counters().bytes_written.fetch_add(request.payload.size(), std::memory_order_relaxed);
  write_request(lane, handle, request);
}

std::span<std::byte> Core::receive_buffer(fuse::LaneContext& at, size_t size) {
  if (size > Memory::kPieceMax) return {};
  return lanes_.at(at.index).receive_buffer();
}

void Core::flush(fuse::LaneContext& at, const fuse::FlushRequest& request) {
  const fuse::RequestHead& head = request.head;
  KernelReplies& kernel = context_.kernel();
  const HandlePtr handle = context_.open_files().find(request.fh);
  // The file could not be opened again by this process: close(2) is the last call that can report
  // it.
  if (!handle) return kernel.reply_error(head, EBADF);
  int error = 0;
  bool clean = (handle->open_flags & O_ACCMODE) == O_RDONLY;
  if (!clean) {
    Inode& inode = *handle->inode;
    const std::scoped_lock lock(inode.mu());
    clean = inode.pieces().unacknowledged() == 0 && !inode.committing && !inode.written();
    // A copy: the error is reported, but not used up (DrainOperation::finish says why).
    uint64_t only_told = handle->error_seen;
    if (clean) error = inode.report(only_told);
  }
  if (clean) return kernel.reply_error(head, error);
  DrainOperation::for_flush(lanes_.at(at.index), head, handle);
}

void Core::release(fuse::LaneContext& at, const fuse::ReleaseRequest& request) {
  if (passthrough_) passthrough_->closed(request.fh);
  const HandlePtr handle = context_.open_files().take(request.fh);
  if (!handle) return context_.kernel().reply_error(request.head, 0);
  Inode& inode = *handle->inode;
  prefetch::Prefetcher& prefetcher = context_.prefetcher();
  if (prefetcher.knows(inode.ino())) prefetcher.closed(inode.ino(), OpenFiles::is_last(inode));
  DrainOperation::for_release(lanes_.at(at.index), request.head, handle);
}

void Core::fsync(fuse::LaneContext& at, const fuse::FsyncRequest& request) {
  const HandlePtr handle = context_.open_files().find(request.fh);
  if (!handle) return context_.kernel().reply_error(request.head, EBADF);
  DrainOperation::for_fsync(lanes_.at(at.index), request.head, handle);
}

bool Core::born(Bytes attributes, Bytes layout, Bytes capability, const fuse::NewHandle& handle) {
  const auto records = decode_file(attributes, layout, capability);
  if (!records || !context_.inodes().put(*records)) return false;
  const uint64_t ino = records->attributes.ino;
  const bool reads_only = (handle.open_flags & O_ACCMODE) == O_RDONLY;
  inode_lease(ino, reads_only ? kLeaseData : kLeaseData | kLeaseDataExclusive, 0);
  return context_.open_files().born(ino, records->attributes.mtime_ns, handle);
}

bool Core::fetch_opened(fuse::LaneContext& at, const fuse::RequestHead& head, uint64_t fh) {
  if (!context_.prefetcher().is_on()) return false;
  const HandlePtr handle = context_.open_files().find(fh);
  return handle && OpenedFetch::start(lanes_.at(at.index), handle, head);
}

std::optional<fuse::Waiting> Core::waiting(uint64_t unique) {
  const std::shared_ptr<Operation> operation = context_.waiting().find(unique);
  if (!operation) return std::nullopt;
  using Ends = fuse::Waiting::Ends;
  return fuse::Waiting{operation->head().pid,
                       operation->is_read() ? Ends::kWhenAsked : Ends::kByFatalSignal};
}

bool Core::interrupt(uint64_t unique) {
  const std::shared_ptr<Operation> operation = context_.waiting().find(unique);
  if (operation) answer_error(*operation, EINTR);
  return operation != nullptr;
}

void Core::answer_error(Operation& operation, int error) noexcept {
  if (!operation.claim()) return;
  const fuse::RequestHead& head = operation.head();
  context_.waiting().drop(head.unique);
  if (operation.answered_early(context_)) return;
  context_.kernel().reply_error(head, error);
}

bool Core::cut(fuse::LaneContext& at, const fuse::CutRequest& request) {
  return cut_file(lanes_.at(at.index), context_.open_files().find(request.fh), request);
}

// ---- the cluster ----

void Core::node_put(uint32_t node) {
  lanes_.post([node](Lane& at) { at.node_put(node); });
}

void Core::target_put(uint32_t target, uint32_t node) {
  lanes_.post([target, node](Lane& at) { at.target_put(target, node); });
}

void Core::target_state(uint32_t target, bool is_up) {
  lanes_.post([target, is_up](Lane& at) { at.target_state(target, is_up); });
}

bool Core::connection_put(uint32_t lane, uint32_t node, net::Socket socket,
                          std::shared_ptr<rdma::Channel> channel) {
  if (lane >= lanes_.count()) return false;
  auto shared = std::make_shared<net::Socket>(std::move(socket));
  lanes_.at(lane).post(
      [node, shared, channel](Lane& at) { at.connection_put(node, std::move(*shared), channel); });
  return true;
}

bool Core::connection_failed(uint32_t lane, uint32_t node) {
  if (lane >= lanes_.count()) return false;
  lanes_.at(lane).post([node](Lane& at) { at.connection_failed(node); });
  return true;
}

// ---- inodes, cuts and leases ----

bool Core::inode_resize(Bytes attributes, Bytes layout, Bytes capability) {
  const auto decoded = decode_attributes(attributes);
  auto view = decode_view(layout, capability);
  if (!decoded || !view) return false;
  const InodePtr inode = context_.inodes().find(decoded->ino);
  if (!inode) return inode_put(attributes, layout, capability);
  auto actions = std::make_shared<Actions>();
  inode->resize(*decoded, std::move(*view), *actions);
  if (actions->empty()) return true;
  lanes_.of(decoded->ino).post([inode, actions](Lane& at) { run_actions(at, inode, *actions); });
  return true;
}

bool Core::cut_done(uint64_t ino, uint64_t number, Status status, Bytes attributes, Bytes layout,
                    Bytes capability) {
  return client::cut_done(context_, ino, {number, status, attributes, layout, capability});
}

bool Core::inode_lease(uint64_t ino, uint32_t flags, uint32_t recalling) {
  const InodePtr inode = context_.inodes().find(ino);
  if (!inode) return false;
  Leases::Change change = Leases::put(*inode, flags, recalling);
  if (change.loses_cut) lose(context_, inode);
  wake(ino, std::move(change.waiting));
  return change.goes_on;
}

void Core::wake(uint64_t ino, std::vector<Inode::Waiter> waiting) {
  if (waiting.empty()) return;
  lanes_.of(ino).post([waiting = std::move(waiting)](Lane& at) {
    for (const Inode::Waiter& waiter : waiting) waiter.operation->proceed(at);
  });
}

void Core::inode_asked(uint64_t ino, int error) {
  if (const InodePtr inode = context_.inodes().find(ino))
    wake(ino, Leases::answered(*inode, error));
}

std::vector<std::pair<uint64_t, uint64_t>> Core::asked_ranges(uint64_t ino) {
  const InodePtr inode = context_.inodes().find(ino);
  if (!inode) return {};
  return Leases::waiting_ranges(*inode);
}

bool Core::inode_lost(uint64_t ino) {
  const InodePtr inode = context_.inodes().find(ino);
  return inode && lose(context_, inode) == Inode::Loss::kWritten;
}

std::vector<std::pair<uint64_t, bool>> Core::inodes_lost() {
  std::vector<std::pair<uint64_t, bool>> losses;
  for (const InodePtr& inode : context_.inodes().all()) {
    const Inode::Loss loss = lose(context_, inode);
    if (loss != Inode::Loss::kNone)
      losses.emplace_back(inode->ino(), loss == Inode::Loss::kWritten);
  }
  return losses;
}

// ---- prefetching ----

size_t Core::announce(std::span<const uint64_t> inos, bool replaces) {
  const size_t count = context_.prefetcher().announce(inos, replaces);
  lanes_.post([](Lane& at) { fetch_announced(at); });
  return count;
}

void Core::pause_fetching(bool paused) {
  context_.prefetcher().pause(paused);
  if (!paused) announce({}, false);
}

uint64_t Core::fetching() { return context_.prefetcher().under_way(); }

void Core::memory_is_short() {
  context_.prefetcher().let_go();
  memory().give_back();
}

// ---- waiting for targets and for Python ----

void Core::drain(uint64_t token, uint64_t ino, bool sync, bool commit) {
  const InodePtr inode = context_.inodes().find(ino);
  if (!inode) return events().put({.kind = EventKind::kDone, .token = token, .ino = ino});
  lanes_.of(ino).post([token, inode, sync, commit](Lane& at) {
    DrainOperation::for_token(at, token, inode, {sync, commit});
  });
}

void Core::barrier(uint64_t token) {
  const auto done = [this, token] { events().put({.kind = EventKind::kDone, .token = token}); };
  if (!lanes_.post([](Lane&) {}, [done](Lane&) { done(); })) done();
}

bool Core::punch(uint64_t token, uint64_t ino, uint64_t begin, uint64_t end) {
  const InodePtr inode = context_.inodes().find(ino);
  if (!inode || begin >= end || end > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  lanes_.of(ino).post([token, inode, begin, end](Lane& at) {
    PunchOperation::start(at, token, inode, begin, end);
  });
  return true;
}

bool Core::copy(uint64_t token, const Extent& from, const Extent& to, uint64_t length,
                bool only_reach) {
  const InodePtr source = context_.inodes().find(from.ino);
  const InodePtr sink = context_.inodes().find(to.ino);
  const auto end = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!source || !sink || length == 0 || length > end - std::min(end, from.begin) ||
      length > end - std::min(end, to.begin) ||
      (from.begin | to.begin | length) % limits::kBlockSize != 0) {
    return false;
  }
  lanes_.of(to.ino).post([=](Lane& at) {
    CopyOperation::start(at, token, {source, sink, from.begin, to.begin, length}, only_reach);
  });
  return true;
}

bool Core::seek(uint64_t token, uint64_t ino, uint64_t from, bool hole) {
  const InodePtr inode = context_.inodes().find(ino);
  if (!inode || from > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  lanes_.of(ino).post(
      [token, inode, from, hole](Lane& at) { SeekOperation::start(at, token, inode, from, hole); });
  return true;
}

bool Core::commit_done(uint64_t token, Status status, Bytes attributes) {
  const std::shared_ptr<DrainOperation> operation = context_.commits().end(token);
  if (!operation) return false;
  const auto decoded = decode_attributes(attributes);
  lanes_.at(operation->lane_index()).post([operation, status, decoded](Lane& at) {
    operation->commit_answered(at, status, decoded);
  });
  return true;
}

std::vector<std::pair<std::string, uint64_t>> Core::counters() {
  const auto sum = [&](std::atomic<uint64_t> LaneCounters::*field) {
    return lanes_.sum(
        [field](Lane& lane) { return (lane.counters().*field).load(std::memory_order_relaxed); });
  };
  const uint64_t polls_paid = lanes_.sum([](Lane& lane) { return lane.loop().polls_paid(); });
  const MemoryBudget& memory = context_.memory();
  OpenFiles& open_files = context_.open_files();
  auto all = std::vector<std::pair<std::string, uint64_t>>{
      {"reads", sum(&LaneCounters::reads)},
      {"bytes_read", sum(&LaneCounters::bytes_read)},
      {"inline_reads", sum(&LaneCounters::inline_reads)},
      {"inline_births", sum(&LaneCounters::inline_births)},
      {"inline_writes", sum(&LaneCounters::inline_writes)},
      {"commits_with_births", sum(&LaneCounters::commits_with_births)},
      {"opens", open_files.own_opens()},
      {"opens_granted", open_files.granted_opens()},
      {"opens_stored", context_.kernel().opens_stored()},
      {"writes", sum(&LaneCounters::writes)},
      {"bytes_written", sum(&LaneCounters::bytes_written)},
      {"bytes_sent", sum(&LaneCounters::bytes_sent)},
      {"cuts", sum(&LaneCounters::cuts)},
      {"retries", sum(&LaneCounters::retries)},
      {"connections_lost", sum(&LaneCounters::connections_lost)},
      {"polls_paid", polls_paid},
      {"bytes_dirty", memory.account(Buffer::Account::kDirty)},
      {"bytes_held", memory.account(Buffer::Account::kHeld)},
      {"bytes_reading", memory.account(Buffer::Account::kRead)},
      {"bytes_announced", memory.account(Buffer::Account::kAnnounced)},
      {"inodes", context_.inodes().count()},
      {"handles", open_files.count()},
      {"logs_dropped", events().logs_dropped()}};
  context_.prefetcher().add_counters(all);
  return all;
}

}  // namespace braidfs::client
