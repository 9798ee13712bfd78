#include "server/chunk_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "net/uring.h"

namespace braidfs::server {

namespace {

constexpr size_t kLanesDefaultMax = 8;
// Connections of one session. A client has one per lane, and for a moment its successor.
constexpr size_t kConnectionsOfSessionMax = 256;
constexpr rlim_t kFilesOpenMin = 256;  // for each target
constexpr rlim_t kFilesOpenMax = 65536;
constexpr size_t kLaneBufferBytesMin = 48u << 20;  // more than two payloads of the largest size

size_t lane_count_of(const ServerConfig& config) {
  if (config.lane_count != 0) return std::min(config.lane_count, ChunkServer::kLanesMax);
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::min(cores, kLanesDefaultMax);
}

LogLevel level_of(int level) {
  if (level >= 40) return LogLevel::kError;
  if (level >= 30) return LogLevel::kWarning;
  return level >= 20 ? LogLevel::kNotice : LogLevel::kDebug;
}

// The files that one target may have open: its equal share of what this process may have open,
// without the quarter that is for connections.
uint32_t files_of_a_target(size_t target_count) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) < 0) return kFilesOpenMin;
  const rlim_t share = (files.rlim_cur - files.rlim_cur / 4) / std::max<size_t>(target_count, 1);
  return static_cast<uint32_t>(std::clamp<rlim_t>(share, kFilesOpenMin, kFilesOpenMax));
}

}  // namespace

ChunkServer::ChunkServer(const ServerConfig& config)
    : target_count_(config.target_count),
      threads_(config.threads),
      services_(config.fetched_bytes_max, config.threads) {
  choose_engine(config.io);
  services_.close_session = [this](uint64_t session) { close_session(session); };
  const size_t count = lane_count_of(config);
  const size_t share = std::max(config.buffer_bytes_max / count, kLaneBufferBytesMin);
  for (size_t index = 0; index < count; ++index) {
    lanes_.push_back(std::make_unique<Lane>(
        LaneConfig{.index = index,
                   .buffer_bytes_max = share,
                   .busy_poll = std::chrono::microseconds(config.busy_poll_us),
                   .stall_max = std::chrono::milliseconds(config.stall_ms_max)},
        services_, registry_));
    if (fault_ == 0) fault_ = lanes_.back()->loop().fault();
  }
}

ChunkServer::~ChunkServer() { stop(0); }

void ChunkServer::choose_engine(IoEngine io) {
  if (io == IoEngine::kSyscall) return;
  const int error = net::Uring::probe();
  services_.uring = error == 0;
  if (error == 0) return;
  if (io == IoEngine::kUring) fault_ = error;
  services_.events.log(LogLevel::kWarning,
                       std::string("io_uring cannot be used (") + std::strerror(-error) +
                           "): I/O that waits for the disk uses worker threads");
}

TargetOpened ChunkServer::target_open(const TargetConfig& config) {
  std::shared_ptr<store::Device> device;
  if (const int error = store::open_posix_device(config.path, device); error != 0) {
    return {.status = static_cast<Status>(-error), .message = config.path};
  }
  return target_open(std::move(device), config);
}

TargetOpened ChunkServer::target_open(std::shared_ptr<store::Device> device,
                                      const TargetConfig& config) {
  TargetTable::Entry* entry = services_.targets.next();
  if (entry == nullptr) return {.status = Status::kEinval, .message = "too many targets"};
  store::StoreConfig options;
  options.cluster = config.cluster;
  options.target = config.uuid;
  options.create = config.create;
  options.capacity_bytes = config.capacity_bytes;
  options.background = threads_;
  const size_t count = std::max(target_count_, services_.targets.count() + 1);
  options.files_open_max = files_of_a_target(count);
  options.groups_cached_max = std::max(options.groups_cached_max, options.files_open_max);
  options.on_corrupt = [this, entry](const store::CorruptBlock& block) {
    services_.events.corrupt(entry->target.load(), block.object.file_id, block.object.stripe_index,
                             block.offset);
  };
  options.on_log = [this, path = config.path](int level, const std::string& text) {
    services_.events.log(level_of(level), path + ": " + text);
  };
  auto opened = store::ChunkStore::open(std::move(device), options);
  if (!opened.store) {
    return {.status = opened.status, .message = config.path + ": " + opened.message};
  }
  // With one more target than announced, the share of each is smaller.
  for (size_t index = 0; count > target_count_ && index < services_.targets.count(); ++index) {
    services_.targets.at(index).store->limit_files(options.files_open_max);
  }
  const uint32_t target = opened.store->figures().target;
  services_.targets.add(std::move(opened.store), target);
  return {.index = services_.targets.count() - 1, .message = {}};
}

store::ChunkStore* ChunkServer::store_at(size_t index) {
  return index < services_.targets.count() ? services_.targets.at(index).store.get() : nullptr;
}

Status ChunkServer::target_assign(size_t index, uint32_t target) {
  const std::scoped_lock lock(targets_mu_);
  store::ChunkStore* const chosen = store_at(index);
  if (chosen == nullptr || target == 0) return Status::kEinval;
  auto& entry = services_.targets.at(index);
  if (entry.target.load() == target) return Status::kOk;
  if (services_.targets.find(target) != nullptr) return Status::kEinval;
  const Status status = chosen->set_target(target);
  if (status == Status::kOk) entry.target.store(target, std::memory_order_release);
  return status;
}

bool ChunkServer::drop_names(uint32_t target, std::span<const store::ObjectId> names) {
  TargetTable::Entry* const entry = services_.targets.entry_of(target);
  return entry != nullptr && entry->dropped.drop(names);
}

bool ChunkServer::target_retire(uint32_t target) {
  TargetTable::Entry* const entry = services_.targets.entry_of(target);
  if (entry != nullptr) entry->dropped.drop_all();
  return entry != nullptr;
}

bool ChunkServer::target_figures(size_t index, store::StoreFigures& figures) {
  const std::scoped_lock lock(targets_mu_);
  store::ChunkStore* const chosen = store_at(index);
  if (chosen == nullptr) return false;
  figures = chosen->figures();
  return true;
}

bool ChunkServer::has_clients(uint32_t target) const {
  const TargetTable::Entry* const entry = services_.targets.entry_of(target);
  return entry != nullptr && entry->clients.was_within(kClientsPresent, Clock::now());
}

Status ChunkServer::store_of(uint32_t target, store::ObjectId object, store::ChunkStore*& store) {
  const TargetTable::Entry* const entry = services_.targets.entry_of(target);
  if (entry == nullptr || entry->store == nullptr) return Status::kNoTarget;
  store = entry->store.get();
  return entry->dropped.has(object) ? Status::kDropped : Status::kOk;
}

Status ChunkServer::examine(uint32_t target, store::ObjectId object, uint32_t group, bool reads,
                            store::Examined& found) {
  const std::shared_lock lock(long_calls_mu_);
  store::ChunkStore* store = nullptr;
  const Status status = store_of(target, object, store);
  return status == Status::kOk ? store->examine(object, group, reads, found) : status;
}

Status ChunkServer::mend(uint32_t target, store::ObjectId object, uint64_t block,
                         std::span<const std::byte> bytes, store::Mended& mended) {
  const std::shared_lock lock(long_calls_mu_);
  store::ChunkStore* store = nullptr;
  const Status status = store_of(target, object, store);
  return status == Status::kOk ? store->mend(object, block, bytes, mended) : status;
}

CopyProgress ChunkServer::copy_step(RemoteCopy& copy, uint64_t bytes) {
  const std::shared_lock lock(long_calls_mu_);
  store::ChunkStore* store = nullptr;
  const Status status = store_of(copy.order().target, copy.order().object, store);
  return status == Status::kOk ? copy.step(*store, services_.writers, bytes)
                               : CopyProgress{.status = status};
}

void ChunkServer::start() {
  Phase expected = Phase::kNew;
  if (!phase_.compare_exchange_strong(expected, Phase::kRunning)) return;
  for (const auto& lane : lanes_) threads_ ? lane->start() : lane->start_by_hand();
}

std::function<void()> ChunkServer::take_task() {
  for (WorkerPool* pool : {&services_.readers, &services_.writers, &services_.blocking}) {
    if (auto task = pool->take()) return task;
  }
  return nullptr;
}

bool ChunkServer::wait_for_connections(uint32_t deadline_ms) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  const auto connected = [this] {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->connection_count() > 0; });
  };
  while (connected()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void ChunkServer::stop(uint32_t deadline_ms) {
  Phase before;
  {
    const std::scoped_lock lock(mu_);
    before = phase_.exchange(Phase::kStopped);
  }
  if (before == Phase::kStopped) return;
  if (before == Phase::kRunning) {
    for (const auto& lane : lanes_) lane->close_all();
    wait_for_connections(deadline_ms);
  }
  services_.fetcher.stop();
  services_.readers.stop();
  services_.writers.stop();
  services_.blocking.stop();
  for (const auto& lane : lanes_) lane->stop();
  services_.sessions.forget_waiting();
  {
    const std::scoped_lock lock(mu_);
    lanes_.clear();
  }
  stop_targets();
}

// The stores are closed, not only stopped: another process may open the directories from now on.
void ChunkServer::stop_targets() {
  const std::scoped_lock lock(targets_mu_, long_calls_mu_);
  for (size_t index = 0; index < services_.targets.count(); ++index) {
    auto& entry = services_.targets.at(index);
    const Status status = entry.store->stop();
    entry.store.reset();
    if (status == Status::kOk) continue;
    services_.events.log(LogLevel::kError, "target " + std::to_string(entry.target.load()) +
                                               " could not be synced at the end (status " +
                                               std::to_string(static_cast<int>(status)) +
                                               "): it is recovered at the next start");
  }
}

void ChunkServer::sessions(std::span<const uint64_t> live) {
  for (const uint64_t gone : services_.sessions.replace(live)) close_session(gone);
}

void ChunkServer::fence(uint64_t session) {
  if (session == 0) return;  // the metaserver's own connections
  services_.sessions.fence(session);
  close_session(session);
}

void ChunkServer::close_session(uint64_t session) {
  const std::scoped_lock lock(mu_);
  if (phase_.load() != Phase::kRunning) return;
  for (const auto& lane : lanes_) lane->close_session(session);
}

void ChunkServer::close_idle(size_t count_max, std::chrono::milliseconds idle_min) {
  const std::scoped_lock lock(mu_);
  if (phase_.load() != Phase::kRunning) return;
  const size_t share = (count_max + lanes_.size() - 1) / lanes_.size();
  for (const auto& lane : lanes_) lane->close_idle(share, idle_min);
}

// The lane for a new connection: that of the connection that it replaces, so that one thread orders
// the two; otherwise the lane with the fewest connections.
size_t ChunkServer::lane_for(const Adoption& adoption) {
  if (adoption.previous != 0) {
    const auto lane =
        registry_.lane_of({.session = adoption.session, .connection = adoption.previous});
    if (lane) return *lane;  // it may have ended a moment ago
  }
  const auto fewest =
      std::min_element(lanes_.begin(), lanes_.end(), [](const auto& left, const auto& right) {
        return left->connection_count() < right->connection_count();
      });
  return static_cast<size_t>(fewest - lanes_.begin());
}

int ChunkServer::rdma_open(const rdma::DeviceAddress& address, uint64_t memory_bytes,
                           std::string& reason) {
  size_t lane_count = 0;
  {
    const std::scoped_lock lock(mu_);
    lane_count = lanes_.size();
  }
  if (lane_count == 0) return -ESHUTDOWN;
  return rails_.open(address, lane_count, memory_bytes, true, reason);
}

int ChunkServer::rdma_offer(size_t rail, uint64_t session, uint64_t previous, uint64_t& token,
                            rdma::Peer& local) {
  const std::scoped_lock lock(mu_);
  if (phase_.load() != Phase::kRunning) return -ESHUTDOWN;
  Adoption wanted;
  wanted.session = session;
  wanted.previous = registry_.predecessor(session, previous);
  return rails_.offer(rail, lane_for(wanted), token, local);
}

// Chooses the lane. With a queue pair, it is the lane for which that was made. False: there is no
// such queue pair, or the connection to be replaced came to another lane meanwhile.
bool ChunkServer::choose_lane(Adoption& adoption, uint64_t rdma_token, size_t& index) {
  if (rdma_token == 0) {
    index = lane_for(adoption);
    return true;
  }
  rdma::Claim claim = rails_.claim(rdma_token);
  adoption.channel = std::move(claim.channel);
  index = claim.lane;
  const auto other =
      registry_.lane_of({.session = adoption.session, .connection = adoption.previous});
  return adoption.channel != nullptr && other.value_or(index) == index;
}

bool ChunkServer::adopt(Adoption adoption, uint64_t rdma_token) {
  const ConnectionName name{.session = adoption.session, .connection = adoption.connection};
  {
    const std::scoped_lock lock(mu_);
    size_t index = 0;
    const bool has_room =
        adoption.purpose == Purpose::kServer ||
        services_.sessions.connection_count(name.session) < kConnectionsOfSessionMax;
    const uint64_t previous = adoption.previous;
    registry_.announce(name, previous);
    adoption.previous = registry_.predecessor(name.session, previous);
    if (has_room && phase_.load() == Phase::kRunning && choose_lane(adoption, rdma_token, index) &&
        registry_.add(name, index, previous)) {
      lanes_[index]->adopt(std::move(adoption));
      return true;
    }
    if (adoption.channel) adoption.channel->port().drop(adoption.channel);
  }
  services_.events.log(LogLevel::kWarning, "connection " + std::to_string(name.connection) +
                                               " of session " + std::to_string(name.session) +
                                               " refused: its name is in use, it was replaced, "
                                               "there are too many, or the server stops");
  services_.events.closed(name.session, name.connection);
  return false;
}

std::map<std::string, uint64_t> ChunkServer::counters() {
  std::map<std::string, uint64_t> sums;
  count_lanes(sums);
  for (size_t index = 0; index < services_.targets.count(); ++index) {
    store::StoreFigures figures;
    if (!target_figures(index, figures)) continue;
    sums["log_bytes"] += figures.log_bytes;
    sums["redo_bytes"] += figures.redo_bytes;
    sums["checkpoints"] += figures.checkpoints;
    sums["store_errors"] += figures.errors;
    sums["objects"] += figures.objects;
    sums["objects_cached"] += figures.objects_cached;
    sums["groups_cached"] += figures.groups_cached;
  }
  rails_.add_counters(sums);
  const Fetcher::Counts fetched = services_.fetcher.counts();
  sums["fetched_objects"] = fetched.objects;
  sums["fetched_bytes"] = fetched.bytes;
  sums["fetched_used"] = fetched.used;
  sums["fetched_unused"] = fetched.unused;
  sums["fetches_refused"] = fetched.refused;
  sums["events_dropped"] = services_.events.dropped();
  sums["sessions_live"] = services_.sessions.live_count();
  return sums;
}

void ChunkServer::count_lanes(std::map<std::string, uint64_t>& sums) {
  const std::scoped_lock lock(mu_);
  for (const auto& lane : lanes_) {
    lane->counters().each([&](const char* name, const Counter& value) {
      sums[name] += value.load(std::memory_order_relaxed);
    });
    lane->counters().each_latency([&](const std::string& op, const Latency& latency) {
      const std::string start = "seconds/" + op + "/";
      for (size_t index = 0; index < latency.counts.size(); ++index) {
        const bool bounded = index < Latency::kBounds.size();
        const std::string bound = bounded ? std::to_string(Latency::kBounds[index]) : "more";
        sums[start + bound] += latency.counts[index].load(std::memory_order_relaxed);
      }
      sums[start + "sum"] += latency.sum_us.load(std::memory_order_relaxed);
    });
  }
}

}  // namespace braidfs::server
