// The rails of one program, by number, as its Python half sees them (docs/INTERFACES.md 3.3).
//
// A device that came back is a new rail with a new number. A closed rail is dropped when nothing
// uses it any more. Rails is made before the lanes and destroyed after them.
//
// Threads: ANY THREAD, guarded by mu_; but check() and close() are not called while lanes end.
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

// What a token stood for. With an empty channel, it stood for nothing.
struct Claim {
  std::shared_ptr<Channel> channel;
  size_t lane = 0;
};

class Rails {
 public:
  // at the same time; includes closed rails that are still used
  static constexpr size_t kRailsMax = 16;
  static constexpr int kNumberMax = 0xffff;

  // Opens a device. Returns the rail's number, or -errno with a sentence in `reason`. memory_bytes
  // is the memory for payloads of all lanes together.
  int open(const DeviceAddress& address, size_t lane_count, uint64_t memory_bytes, bool is_acceptor,
           std::string& reason);
  int add(std::shared_ptr<Rail> rail);
  void close(size_t rail);  // its streams fail; an unknown number is ignored
  // Returns the open rails whose device cannot be used any more. Drops closed rails that are idle.
  std::vector<int> check();

  int offer(size_t rail, size_t lane, uint64_t& token, Peer& local);
  // -EPROTO: the bytes do not describe a peer.
  int connect(uint64_t token, std::span<const std::byte> peer);
  Claim claim(uint64_t token);
  void drop(uint64_t token);
  void add_counters(std::map<std::string, uint64_t>& sums) const;

 private:
  std::shared_ptr<Rail> find(uint64_t token) const;

  mutable std::mutex mu_;
  std::map<int, std::shared_ptr<Rail>> rails_;  // guarded by mu_; each rail guards itself
  std::map<std::string, uint64_t> past_;        // counters of dropped rails; guarded by mu_
  int next_ = 0;                                // guarded by mu_
};

}  // namespace braidfs::rdma
