#include "server/lane.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/threads.h"

namespace braidfs::server {

namespace {

// Fresh pages may take longer than the disk; they are made here, so that the first checkpoint after
// a start does not wait for them.
constexpr size_t kWarmBytes = 32u << 20;
constexpr int kStallChecks = 12;  // checks during the longest stall
constexpr int kStallPartWhenShort = 6;
// One line per second, so that a stranger cannot flood the logs.
constexpr std::chrono::seconds kCutLogInterval{1};

ConnectionName name_of(const Connection& connection) {
  return {connection.session(), connection.id()};
}

}  // namespace

Lane::Lane(const LaneConfig& config, Services& services, ConnectionRegistry& registry)
    : index_(config.index),
      stall_max_(config.stall_max),
      services_(services),
      registry_(registry),
      buffers_(config.buffer_bytes_max, counters_),
      operations_(*this, services) {
  loop_.busy_poll(config.busy_poll, [this] { return !connections_.empty(); });
}

Lane::~Lane() { stop(); }

void Lane::start() {
  thread_ = std::thread([this] { run(); });
}

void Lane::start_by_hand() { check_stalled(); }

void Lane::stop() {
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  waiting_.clear();
  completed_.clear();
  connections_.clear();
}

void Lane::run() {
  begin_thread(("braid-lane" + std::to_string(index_)).c_str());
  buffers_.warm(kWarmBytes);
  if (services_.uring) {
    uring_ = std::make_unique<net::Uring>(loop_);
    if (const int error = uring_->open(); error == 0) {
      operations_.use_uring(uring_.get());
    } else {
      services_.events.log(LogLevel::kWarning, std::string("io_uring refused for one lane (") +
                                                   std::strerror(-error) +
                                                   "): it uses worker threads instead");
    }
  }
  check_stalled();
  loop_.run();
  operations_.use_uring(nullptr);
  uring_.reset();
}

// Lanes have few tasks (completions post one task for many), so a full list empties within moments.
void Lane::post(net::EventLoop::Task task) {
  while (!loop_.post(task)) std::this_thread::yield();
}

void Lane::adopt(Adoption adoption) {
  auto shared = std::make_shared<Adoption>(std::move(adoption));
  connection_count_.fetch_add(1, std::memory_order_acq_rel);
  post([this, shared] { begin(std::move(*shared)); });
}

void Lane::begin(Adoption adoption) {
  const ConnectionName previous{adoption.session, adoption.previous};
  auto connection = std::make_shared<Connection>(*this, std::move(adoption));
  connections_.emplace(name_of(*connection), connection);
  add(counters_.connections);
  add(counters_.connections_adopted);
  const auto found = connections_.find(previous);
  const bool replaces =
      previous.connection != 0 && found != connections_.end() && found->second != connection;
  connection->begin(replaces);
  if (replaces) {
    const auto old = found->second;
    old->replaced_by(connection);
  }
}

void Lane::close_session(uint64_t session) {
  post([this, session] {
    std::vector<std::shared_ptr<Connection>> closing;
    for (const auto& [name, connection] : connections_) {
      if (name.session == session) closing.push_back(connection);
    }
    for (const auto& connection : closing) connection->close(0, "the session ended");
  });
}

void Lane::close_all() {
  post([this] {
    std::vector<std::shared_ptr<Connection>> closing;
    for (const auto& [name, connection] : connections_) closing.push_back(connection);
    for (const auto& connection : closing) connection->close(0, "the server stops");
  });
}

void Lane::close_idle(size_t count_max, std::chrono::milliseconds idle_min) {
  post([this, count_max, idle_min] {
    std::vector<std::pair<net::Clock::time_point, std::shared_ptr<Connection>>> idle;
    for (const auto& [name, connection] : connections_) {
      const auto since = connection->idle_since();
      if (since && loop_.now() - *since >= idle_min) idle.emplace_back(*since, connection);
    }
    const size_t count = std::min(count_max, idle.size());
    const auto earlier = [](const auto& left, const auto& right) {
      return left.first < right.first;
    };
    std::partial_sort(idle.begin(), idle.begin() + static_cast<ptrdiff_t>(count), idle.end(),
                      earlier);
    for (size_t index = 0; index < count; ++index) {
      idle[index].second->close(0, "it was idle, and others need its place");
    }
  });
}

void Lane::complete(std::shared_ptr<Request> request) {
  bool first = false;
  {
    const std::scoped_lock lock(mu_);
    first = completed_.empty();
    completed_.push_back(std::move(request));
  }
  if (first) post([this] { drain_completed(); });
}

void Lane::drain_completed() {
  std::vector<std::shared_ptr<Request>> completed;
  {
    const std::scoped_lock lock(mu_);
    completed.swap(completed_);
  }
  for (auto& request : completed) finish(std::move(request));
}

bool Lane::give_buffer(Request& request) {
  Buffer buffer = buffers_.take(bytes_of(request));
  if (!buffer) return false;
  request.take_buffer(std::move(buffer));
  return true;
}

size_t Lane::bytes_of(const Request& read) {
  return store::read_buffer_bytes(read.header.offset, read.header.length);
}

// Keeps the READ of a connection that has its share of memory until earlier replies were sent.
// True: it is kept.
bool Lane::held_back(std::shared_ptr<Request>& read) {
  Connection& owner = *read->connection;
  if (owner.may_hold(bytes_of(*read))) return false;
  add(counters_.buffer_waits);
  owner.hold_back(std::move(read));
  return true;
}

void Lane::execute(std::shared_ptr<Request> request) {
  if (request->op() == Op::kRead && held_back(request)) return;
  if (request->op() == Op::kRead && (!waiting_.empty() || !give_buffer(*request))) {
    add(counters_.buffer_waits);
    waiting_.emplace_back(std::move(request));
    memory_returned();
    return;
  }
  operations_.execute(std::move(request));
}

void Lane::observe(const Request& request) {
  const auto took = net::Clock::now() - request.accepted;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  Latency& latency = request.op() == Op::kRead    ? counters_.read_time
                     : request.op() == Op::kWrite ? counters_.write_time
                     : request.op() == Op::kSync  ? counters_.sync_time
                                                  : counters_.other_time;
  latency.took(static_cast<uint64_t>(us));
}

void Lane::finish(std::shared_ptr<Request> request) {
  observe(*request);
  if (request->status == Status::kOk) {
    if (request->op() == Op::kRead) add(counters_.read_bytes, request->payload_length());
    if (request->op() == Op::kWrite) add(counters_.written_bytes, request->payload.size());
    if (request->op() == Op::kCopy) add(counters_.copied_bytes, request->header.length);
    if (request->op() == Op::kDelete) add(counters_.deleted_objects);
    if (request->op() == Op::kDeleteAll) add(counters_.deleted_objects, request->objects.size());
  }
  if (request->op() == Op::kWrite) {  // its bytes are stored, so others may have the memory
    request->payload = {};
    request->drop_buffer();
    memory_returned();
  }
  if (request->status == Status::kCorrupt) add(counters_.corrupt_blocks);
  auto& connection = *request->connection;
  if (request->clients != nullptr && connection.purpose() == Purpose::kData)
    request->clients->is(loop_.now());
  connection.reply(std::move(request));
}

Buffer Lane::take_buffer(size_t size) {
  const bool turn = std::exchange(turn_, false);
  if (!turn && !waiting_.empty()) return {};
  Buffer buffer = buffers_.take(size);
  turn_lost_ = turn && !buffer;
  return buffer;
}

void Lane::wait_for_memory(std::shared_ptr<Connection> connection) {
  add(counters_.buffer_waits);
  if (std::exchange(turn_lost_, false)) {
    waiting_.emplace_front(std::move(connection));
  } else {
    waiting_.emplace_back(std::move(connection));
    memory_returned();
  }
}

void Lane::memory_returned() {
  if (waiting_.empty() || std::exchange(serve_scheduled_, true)) return;
  loop_.defer([this] { serve_waiting(); });
}

void Lane::serve_waiting() {
  serve_scheduled_ = false;
  while (!waiting_.empty() && serve_first()) {
  }
}

bool Lane::serve_first() {
  if (auto* first = std::get_if<std::shared_ptr<Request>>(&waiting_.front())) {
    if ((*first)->connection->may_hold(bytes_of(**first)) && !give_buffer(**first)) return false;
    auto request = std::move(*first);
    waiting_.pop_front();
    if (!request->buffer && held_back(request)) return true;
    operations_.execute(std::move(request));
    return true;
  }
  const auto connection = std::get<std::shared_ptr<Connection>>(waiting_.front());
  waiting_.pop_front();
  turn_ = true;
  connection->resume();
  turn_ = false;
  const bool again = !waiting_.empty() &&
                     std::holds_alternative<std::shared_ptr<Connection>>(waiting_.front()) &&
                     std::get<std::shared_ptr<Connection>>(waiting_.front()) == connection;
  return !again;
}

void Lane::forget_waiting(const Connection& connection) {
  std::vector<Waiter> dropped;  // dropped after the queue is whole again
  std::deque<Waiter> kept;
  for (auto& waiter : waiting_) {
    const auto* request = std::get_if<std::shared_ptr<Request>>(&waiter);
    const Connection* owner = request != nullptr
                                  ? (*request)->connection.get()
                                  : std::get<std::shared_ptr<Connection>>(waiter).get();
    if (owner == &connection) {
      dropped.push_back(std::move(waiter));
    } else {
      kept.push_back(std::move(waiter));
    }
  }
  waiting_ = std::move(kept);
}

void Lane::connection_ended(Connection& connection) {
  const ConnectionName name = name_of(connection);
  connections_.erase(name);
  registry_.remove(name);
  subtract(counters_.connections);
  connection_count_.fetch_sub(1, std::memory_order_acq_rel);
  services_.events.closed(name.session, name.connection);
  services_.sessions.connection_ended(name.session);
}

void Lane::report_cut(const Connection& connection, int error, const std::string& reason) {
  const auto now = loop_.now();
  if (now - cut_logged_at_ < kCutLogInterval) return;
  cut_logged_at_ = now;
  services_.events.log(error == EPROTO ? LogLevel::kWarning : LogLevel::kNotice,
                       "connection " + std::to_string(connection.id()) + " of session " +
                           std::to_string(connection.session()) + " cut: " + reason + " (" +
                           std::strerror(error) + ")");
}

void Lane::check_stalled() {
  // When memory is short, a client that does not read its replies gets less time.
  const auto since =
      loop_.now() - (waiting_.empty() ? stall_max_ : stall_max_ / kStallPartWhenShort);
  std::vector<std::shared_ptr<Connection>> stalled;
  for (const auto& [name, connection] : connections_) {
    if (connection->stalled_since(since)) stalled.push_back(connection);
  }
  for (const auto& connection : stalled) {
    add(counters_.stalled_connections);
    connection->close(ETIMEDOUT, "no progress for too long");
  }
  memory_returned();  // for the case that the system had no memory
  loop_.call_at(loop_.now() + stall_max_ / kStallChecks, [this] { check_stalled(); });
}

}  // namespace braidfs::server
