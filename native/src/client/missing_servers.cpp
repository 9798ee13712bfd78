#include "client/missing_servers.h"

#include <algorithm>

namespace braidfs::client {

void MissingServers::attempt_begins(uint32_t node, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  Server& server = servers_[node];
  server.missing_since = since(server, now);
  ++server.attempts;
}

void MissingServers::attempt_ends(uint32_t node) {
  const std::scoped_lock lock(mu_);
  Server& server = servers_[node];
  if (server.attempts > 0) --server.attempts;
}

void MissingServers::failed(uint32_t node, Clock::time_point since, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  Server& server = servers_[node];
  const auto known = MissingServers::since(server, now);
  server.missing_since = known ? std::min(*known, since) : since;
  server.failed = now;
}

void MissingServers::found(uint32_t node) {
  const std::scoped_lock lock(mu_);
  servers_[node].missing_since.reset();
}

std::optional<Clock::time_point> MissingServers::since(uint32_t node, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  const auto found = servers_.find(node);
  return found == servers_.end() ? std::nullopt : MissingServers::since(found->second, now);
}

std::optional<Clock::time_point> MissingServers::since(const Server& server,
                                                       Clock::time_point now) {
  const bool counts = server.attempts > 0 || now < server.failed + kCounts;
  return counts ? server.missing_since : std::nullopt;
}

void MissingServers::excuse(Clock::duration late, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  for (auto& [node, server] : servers_) {
    if (server.missing_since) server.missing_since = std::min(now, *server.missing_since + late);
  }
}

}  // namespace braidfs::client
