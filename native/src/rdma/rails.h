// The rails of one program, by number, as its Python half sees them (docs/INTERFACES.md 3.3).
// A device that came back is a new rail with a new number; a closed one goes when nothing uses it
// any more. Made before the lanes, gone after them. ANY THREAD, but check() and close() not while
// lanes end.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/ibverbs.h"
#include "rdma/rail.h"

namespace braidfs::rdma {

// What a token stood for. Empty channel: nothing.
struct Claim {
  std::shared_ptr<Channel> channel;
  size_t lane = 0;
};

class Rails {
 public:
  static constexpr size_t kRailsMax = 16;  // at once, closed ones that are still used included
  static constexpr int kNumberMax = 0xffff;

  // The rail's number, or -errno and why. memory_bytes: of payloads, for all lanes together.
  int open(const DeviceAddress& address, size_t lane_count, uint64_t memory_bytes, bool is_acceptor,
           std::string& reason);
  int add(std::shared_ptr<Rail> rail);
  void close(size_t rail);  // its streams fail; unknown ones are ignored
  // The open rails whose device is beyond use. Lets go of closed ones.
  std::vector<int> check();

  int offer(size_t rail, size_t lane, uint64_t& token, Peer& local);
  int connect(uint64_t token,
              std::span<const std::byte> peer);  // -EPROTO: no description of a peer
  Claim claim(uint64_t token);
  void drop(uint64_t token);
  void add_counters(std::map<std::string, uint64_t>& sums) const;

 private:
  std::shared_ptr<Rail> find(uint64_t token) const;

  mutable std::mutex mu_;
  std::map<int, std::shared_ptr<Rail>> rails_;  // guarded by mu_; rails themselves guard themselves
  std::map<std::string, uint64_t> past_;        // counters of those that went, guarded by mu_
  int next_ = 0;                                // guarded by mu_
};

}  // namespace braidfs::rdma
