// Which lane has which connection, until the connection has ended, and which connection each one
// replaces. So a connection that replaces another is put on the same lane, behind it.
//
// A connection is announced when its client has proved itself, and adopted some time later, or
// never: it may be refused in between. Its client names it as the one before the next in any case.
// The next one then waits for what the refused one would have waited for; and a connection that is
// adopted only after its successor is refused, because its requests would come too late.
//
// ANY THREAD, guarded by mu_.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
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
  static constexpr size_t kAnnouncedMax = 1u << 16;  // the oldest ones are forgotten
  static constexpr int kChainMax = 1024;

  // The connection replaces `previous`, 0: none.
  void announce(const ConnectionName& name, uint64_t previous) {
    const std::scoped_lock lock(mu_);
    if (!announced_.try_emplace(name, Announced{previous}).second) return;
    order_.push_back(name);
    if (order_.size() <= kAnnouncedMax) return;
    announced_.erase(order_.front());
    order_.pop_front();
  }
  // The connection of this session that one which names `previous` has to wait for; 0: none.
  uint64_t predecessor(uint64_t session, uint64_t previous) const {
    const std::scoped_lock lock(mu_);
    ConnectionName name{session, previous};
    for (int step = 0; name.connection != 0 && step < kChainMax; ++step) {
      if (lanes_.contains(name)) return name.connection;
      const auto found = announced_.find(name);
      name.connection = found == announced_.end() ? 0 : found->second.previous;
    }
    return 0;
  }
  // False: the name is taken, a successor came first, or there are too many connections.
  bool add(const ConnectionName& name, size_t lane, uint64_t previous) {
    const std::scoped_lock lock(mu_);
    const auto found = announced_.find(name);
    if (found != announced_.end() && found->second.is_replaced) return false;
    if (lanes_.size() >= kConnectionsMax || !lanes_.emplace(name, lane).second) return false;
    replace({name.session, previous});
    return true;
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
  struct Announced {
    uint64_t previous = 0;
    bool is_replaced = false;
  };

  // Keeps out those that were announced before and not adopted yet.
  void replace(ConnectionName name) {
    for (int step = 0; name.connection != 0 && step < kChainMax; ++step) {
      const auto found = announced_.find(name);
      if (found == announced_.end() || found->second.is_replaced) return;
      found->second.is_replaced = true;
      name.connection = found->second.previous;
    }
  }

  mutable std::mutex mu_;
  std::unordered_map<ConnectionName, size_t, ConnectionNameHash> lanes_;
  std::unordered_map<ConnectionName, Announced, ConnectionNameHash> announced_;
  std::deque<ConnectionName> order_;  // of announced_
};

}  // namespace braidfs::server
