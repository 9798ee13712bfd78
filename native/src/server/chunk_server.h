// The native half of a storage server, composed: targets, lanes, workers, and the tables that
// Python fills (docs/INTERFACES.md 3.2). bindings/server.cpp binds it to Python.
//
// Threads: every call is ANY THREAD, but target_open(), start() and stop() are called one at a time
// (Python calls them from one task). Calls are short, except target_open() (recovery) and stop()
// (drain).
//
// Invariants: no request is served before the first sessions(); after stop() nothing is served and
// every target is marked clean. Not here: the handshake, registration, heartbeats (storageserver/,
// fscommon/auth).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "rdma/rails.h"
#include "server/connection_registry.h"
#include "server/lane.h"
#include "server/remote_copy.h"
#include "server/services.h"

namespace braidfs::server {

enum class IoEngine : uint8_t { kAuto, kUring, kSyscall };

struct ServerConfig {
  size_t lane_count = 0;  // 0: one per core, at most 8
  // The number of targets to expect; all targets share what the process may have open.
  size_t target_count = 1;
  IoEngine io = IoEngine::kAuto;
  size_t buffer_bytes_max = size_t{512} << 20;  // for payloads, all lanes together
  uint32_t busy_poll_us = 0;  // longest time that a lane polls for requests before it sleeps
  // Bytes that may be fetched into the page cache and not read yet. 0: nothing is fetched.
  uint64_t fetched_bytes_max = uint64_t{1} << 30;
  uint32_t stall_ms_max = 60'000;  // a connection without progress for longer is cut
  // False: nothing runs by itself. A test turns the loops of the lanes, runs the workers' tasks,
  // and has the stores do their background work. Nothing is fetched.
  bool threads = true;
};

struct TargetConfig {
  std::string path;
  store::Uuid cluster{};
  store::Uuid uuid{};
  uint64_t capacity_bytes = 0;
  bool create = false;
};

// Result of target_open(). `index` is valid when status is kOk; otherwise `message` is a sentence
// for people.
struct TargetOpened {
  size_t index = 0;
  Status status = Status::kOk;
  std::string message;
};

class ChunkServer {
 public:
  static constexpr size_t kLanesMax = 64;

  // When io is kUring and io_uring cannot be used, fault() is -errno, and nothing else may be
  // called.
  explicit ChunkServer(const ServerConfig& config);
  ~ChunkServer();
  ChunkServer(const ChunkServer&) = delete;
  ChunkServer& operator=(const ChunkServer&) = delete;

  int fault() const { return fault_; }
  const char* io_engine() const { return services_.uring ? "uring" : "syscall"; }

  TargetOpened target_open(const TargetConfig& config);
  // The same on a device that is open; the configuration's path is only its name.
  TargetOpened target_open(std::shared_ptr<store::Device> device, const TargetConfig& config);
  // kEinval: there is no such index, or the id is 0 or taken
  Status target_assign(size_t index, uint32_t target);
  bool target_figures(size_t index, store::StoreFigures& figures);
  // From now on no client is served for these names of the target. False: there is no such target,
  // or it has too many names.
  bool drop_names(uint32_t target, std::span<const store::ObjectId> names);
  // The target is part of the cluster no more: every name of it is dropped. False: there is none.
  bool target_retire(uint32_t target);

  // Whether clients have asked for something of the target, or got it, a moment ago.
  bool has_clients(uint32_t target) const;
  // As the store's. kNoTarget; kDropped. Blocking.
  Status examine(uint32_t target, store::ObjectId object, uint32_t group, bool reads,
                 store::Examined& found);
  Status mend(uint32_t target, store::ObjectId object, uint64_t block,
              std::span<const std::byte> bytes, store::Mended& mended);
  // Goes on with a copy to one of the targets (remote_copy.h). Blocking.
  CopyProgress copy_step(RemoteCopy& copy, uint64_t bytes);

  void start();
  void stop(uint32_t deadline_ms);

  void capability_key(std::span<const std::byte> key) { services_.capability_key.set(key); }
  void sessions(std::span<const uint64_t> live);
  void serve_until(int64_t deadline_ns) { services_.sessions.serve_until(deadline_ns); }
  void fence(uint64_t session);
  size_t connection_count() const { return registry_.size(); }
  // Closes at most count_max connections that were idle for at least idle_min, the longest idle
  // first. Their clients make new ones when they need them.
  void close_idle(size_t count_max, std::chrono::milliseconds idle_min);
  // A client has proved itself, and names this connection as replaced by its next one from now on,
  // whether it is adopted or not.
  void announce(uint64_t session, uint64_t connection, uint64_t previous) {
    registry_.announce({.session = session, .connection = connection}, previous);
  }
  // Takes over a connection. False, and the socket is closed: the name is taken, its successor came
  // first, there are too many connections, or the server does not run. rdma_token is that of
  // rdma_offer(); 0: frames go over the socket.
  bool adopt(Adoption adoption, uint64_t rdma_token = 0);

  // ---- RDMA (rdma/rails.h): the queue pair is made on the lane that will get the connection ----
  int rdma_open(const rdma::DeviceAddress& address, uint64_t memory_bytes, std::string& reason);
  int rdma_offer(size_t rail, uint64_t session, uint64_t previous, uint64_t& token,
                 rdma::Peer& local);
  rdma::Rails& rails() { return rails_; }

  // ---- for tests, without threads (ServerConfig::threads) ----
  size_t lane_count() const { return lanes_.size(); }
  net::EventLoop& loop(size_t lane) { return lanes_[lane]->loop(); }
  std::function<void()> take_task();  // a worker's; nullptr: there is none
  store::ChunkStore& store(size_t index) { return *services_.targets.at(index).store; }

  EventQueue& events() { return services_.events; }
  std::map<std::string, uint64_t> counters();

 private:
  void choose_engine(IoEngine io);
  void close_session(uint64_t session);
  size_t lane_for(const Adoption& adoption);
  bool choose_lane(Adoption& adoption, uint64_t rdma_token, size_t& index);
  bool wait_for_connections(uint32_t deadline_ms) const;
  void stop_targets();
  store::ChunkStore* store_at(size_t index);  // targets_mu_ is held
  // long_calls_mu_ is held
  Status store_of(uint32_t target, store::ObjectId object, store::ChunkStore*& store);
  void count_lanes(std::map<std::string, uint64_t>& sums);

  enum class Phase : uint8_t { kNew, kRunning, kStopped };

  const size_t target_count_;
  const bool threads_;
  int fault_ = 0;
  std::atomic<Phase> phase_{Phase::kNew};
  Services services_;
  ConnectionRegistry registry_;
  rdma::Rails rails_;  // outlives the lanes
  std::vector<std::unique_ptr<Lane>> lanes_;
  // Guards the stores against their end in stop(); the lanes end before that.
  std::mutex targets_mu_;
  std::shared_mutex long_calls_mu_;  // the same, for calls that last long
  std::mutex mu_;                    // guards lanes_ against its end in stop()
};

}  // namespace braidfs::server
