#include "rdma/rail.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace braidfs::rdma {

int Rail::make(std::unique_ptr<Device> device, size_t lane_count, const PortSettings& settings,
               std::shared_ptr<Rail>& rail, std::string& reason) {
  std::shared_ptr<Rail> made(new Rail(std::move(device)));
  for (size_t lane = 0; lane < lane_count; ++lane) {
    auto port = std::make_unique<Port>(*made->device_, settings);
    if (const int error = port->make(); error != 0) {
      reason =
          error == -ENOMEM
              ? "memory cannot be registered: raise the memlock limit (ulimit -l, LimitMEMLOCK=)"
              : std::string("cannot be set up: ") + std::strerror(-error);
      return error;
    }
    made->ports_.push_back(std::move(port));
  }
  rail = std::move(made);
  return 0;
}

int Rail::offer(size_t lane, uint64_t& token, Peer& local) {
  if (lane >= ports_.size()) return -EINVAL;
  const std::scoped_lock lock(mu_);
  if (closed_) return -ENODEV;
  if (agreeing_.size() >= kAgreeingMax) return -EMFILE;
  std::shared_ptr<Channel> channel;
  if (const int error = ports_[lane]->make_channel(channel); error != 0) return error;
  token = next_token_++;
  local = channel->local();
  agreeing_[token] = std::move(channel);
  return 0;
}

int Rail::connect(uint64_t token, const Peer& peer) {
  const std::scoped_lock lock(mu_);
  const auto found = agreeing_.find(token);
  return found == agreeing_.end() ? -ENOENT : found->second->connect(peer);
}

std::shared_ptr<Channel> Rail::claim(uint64_t token) {
  const std::scoped_lock lock(mu_);
  const auto found = agreeing_.find(token);
  if (found == agreeing_.end()) return nullptr;
  auto channel = std::move(found->second);
  agreeing_.erase(found);
  return channel;
}

void Rail::drop(uint64_t token) {
  if (const auto channel = claim(token)) channel->port().drop(channel);
}

void Rail::close(const std::string& reason) {
  std::map<uint64_t, std::shared_ptr<Channel>> agreeing;
  {
    const std::scoped_lock lock(mu_);
    closed_ = true;
    agreeing.swap(agreeing_);
  }
  for (const auto& [token, channel] : agreeing) channel->port().drop(channel);
  for (const auto& port : ports_) {
    if (port->is_idle()) continue;
    net::EventLoop* const loop = port->attached();
    if (loop == nullptr) continue;
    (void)loop->post([self = shared_from_this(), &port = *port, reason] { port.lose(reason); });
  }
}

bool Rail::is_closed() {
  const std::scoped_lock lock(mu_);
  return closed_;
}

bool Rail::is_idle() {
  const std::scoped_lock lock(mu_);
  return agreeing_.empty() && std::all_of(ports_.begin(), ports_.end(),
                                          [](const auto& port) { return port->is_idle(); });
}

// The posted tasks keep the rail alive until every lane has left it.
bool Rail::let_go() {
  const std::scoped_lock lock(mu_);
  for (; let_go_ < ports_.size(); ++let_go_) {
    Port& port = *ports_[let_go_];
    net::EventLoop* const loop = port.attached();
    if (loop == nullptr) continue;
    if (!loop->post([self = shared_from_this(), &port] { port.detach(); })) return false;
  }
  return true;
}

bool Rail::has_failed() {
  std::vector<uint32_t> pairs;
  const bool failed = device_->take_events(pairs);
  for (const uint32_t pair : pairs) fail_pair(pair);
  return failed || std::any_of(ports_.begin(), ports_.end(),
                               [](const auto& port) { return port->is_lost(); });
}

void Rail::fail_pair(uint32_t pair) {
  for (const auto& port : ports_) {
    auto channel = port->find(pair);
    net::EventLoop* const loop = channel ? port->attached() : nullptr;
    if (loop == nullptr) continue;
    (void)loop->post([self = shared_from_this(), channel = std::move(channel)] {
      channel->lost(
          "the device gave up the queue pair; did the peer access memory without a right?");
    });
  }
}

std::map<std::string, uint64_t> Rail::counters() const {
  std::map<std::string, uint64_t> sums;
  for (const auto& port : ports_) {
    PortCounters& counters = port->counters();
    sums["rdma_messages_sent"] += counters.messages_sent;
    sums["rdma_messages_received"] += counters.messages_received;
    sums["rdma_bytes_written"] += counters.bytes_written;
    sums["rdma_bytes_fetched"] += counters.bytes_fetched;
    sums["rdma_bytes_short"] += counters.bytes_short;
    sums["rdma_signalled"] += counters.signalled;
    sums["rdma_doorbells"] += counters.doorbells;
    sums["rdma_waits"] += counters.waits;
    sums["rdma_failures"] += counters.failures;
  }
  return sums;
}

}  // namespace braidfs::rdma
