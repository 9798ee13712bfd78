// One device as a program uses it: a port for each lane, and the queue pairs that Python is
// agreeing on with peers (token → channel), before a lane gets them.
//
// A closed rail makes nothing new and fails every stream on it. When the last stream is gone,
// let_go() takes the ports apart, each on its own lane; with the last port the device is closed.
//
// Threads: ANY THREAD, guarded by mu_. Not here: which devices and peers fit together
// (fscommon/net/rails.py).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rdma/channel.h"
#include "rdma/port.h"
#include "rdma/verbs.h"

namespace braidfs::rdma {

class Rail : public std::enable_shared_from_this<Rail> {
 public:
  static constexpr size_t kAgreeingMax = 256;  // offered queue pairs that no lane has claimed

  // Registers everything that the lanes will need. 0, or -errno with a sentence in `reason`.
  static int make(std::unique_ptr<Device> device, size_t lane_count, const PortSettings& settings,
                  std::shared_ptr<Rail>& rail, std::string& reason);

  // Makes a queue pair for this lane: sets its token and what the peer has to know. 0 or -errno.
  int offer(size_t lane, uint64_t& token, Peer& local);
  int connect(uint64_t token, const Peer& peer);   // -ENOENT: there is no such token
  std::shared_ptr<Channel> claim(uint64_t token);  // empty: there is no such token
  void drop(uint64_t token);

  // Called again, it repeats the notice for lanes whose list of tasks was full.
  void close(const std::string& reason);
  bool is_closed();
  bool is_idle();
  // For an idle, closed rail. True: the rail may be dropped. False: the list of tasks of a lane was
  // full; call again.
  bool let_go();
  // True when the device cannot be used any more. Also takes its events: queue pairs that it gave
  // up end their streams.
  bool has_failed();

  size_t lane_count() const noexcept { return ports_.size(); }
  Port& port(size_t lane) noexcept { return *ports_[lane]; }
  std::map<std::string, uint64_t> counters() const;

 private:
  explicit Rail(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  void fail_pair(uint32_t pair);

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::mutex mu_;
  std::map<uint64_t, std::shared_ptr<Channel>> agreeing_;  // guarded by mu_
  uint64_t next_token_ = 1;                                // guarded by mu_
  bool closed_ = false;                                    // guarded by mu_
  size_t let_go_ = 0;  // how many ports were let go, guarded by mu_
};

}  // namespace braidfs::rdma
