// Which lane has which connection, until the connection has ended. So a connection that replaces
// another is put on the same lane, behind it. ANY THREAD, guarded by mu_.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace braidfs::server {

// A client names its connections; the session distinguishes the names of different clients.
struct ConnectionName {
  uint64_t session = 0;
  uint64_t connection = 0;
  bool operator==(const ConnectionName&) const = default;
};

struct ConnectionNameHash {
  size_t operator()(const ConnectionName& name) const noexcept {
    return std::hash<uint64_t>()(name.session * 0x9e3779b97f4a7c15u ^ name.connection);
  }
};

class ConnectionRegistry {
 public:
  // The policy is decided earlier (fscommon/net).
  static constexpr size_t kConnectionsMax = 1u << 16;

  // False: the name is taken, or there are too many connections.
  bool add(const ConnectionName& name, size_t lane) {
    const std::scoped_lock lock(mu_);
    return lanes_.size() < kConnectionsMax && lanes_.emplace(name, lane).second;
  }
  std::optional<size_t> lane_of(const ConnectionName& name) const {
    const std::scoped_lock lock(mu_);
    const auto found = lanes_.find(name);
    return found == lanes_.end() ? std::nullopt : std::optional(found->second);
  }
  void remove(const ConnectionName& name) {
    const std::scoped_lock lock(mu_);
    lanes_.erase(name);
  }
  size_t size() const {
    const std::scoped_lock lock(mu_);
    return lanes_.size();
  }

 private:
  mutable std::mutex mu_;
  std::unordered_map<ConnectionName, size_t, ConnectionNameHash> lanes_;
};

}  // namespace braidfs::server
