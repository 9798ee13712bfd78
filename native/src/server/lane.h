// One thread of the data path: an event loop, the connections that it adopted, their buffers and,
// if the kernel allows it, an io_uring.
//
// A request is received, performed and answered on this thread, unless the disk or a lock makes it
// wait.
//
// Invariants: requests and buffers are dropped on this thread only; waits for memory are served in
// order; a connection is forgotten only when it has ended.
//
// Threads: LANE ONLY, except adopt(), close_session(), close_idle(), complete(), close_all(),
// stop() and connection_count(), which are ANY THREAD.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "net/event_loop.h"
#include "net/uring.h"
#include "server/buffer_pool.h"
#include "server/connection.h"
#include "server/connection_registry.h"
#include "server/operations.h"
#include "server/services.h"

namespace braidfs::server {

struct LaneConfig {
  size_t index = 0;
  size_t buffer_bytes_max = 256u << 20;
  std::chrono::microseconds busy_poll{0};
  std::chrono::milliseconds stall_max{60'000};  // a connection without progress for longer is cut
};

class Lane {
 public:
  Lane(const LaneConfig& config, Services& services, ConnectionRegistry& registry);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void start();
  void start_by_hand();  // without a thread: whoever calls turns loop()
  void stop();           // ends and joins the thread; its connections must have ended

  void adopt(Adoption adoption);
  void close_session(uint64_t session);
  void close_all();
  // Closes the connections that were idle longest, and for at least idle_min.
  void close_idle(size_t count_max, std::chrono::milliseconds idle_min);
  void complete(std::shared_ptr<Request> request);
  size_t connection_count() const { return connection_count_.load(std::memory_order_acquire); }

  Services& services() { return services_; }
  Counters& counters() { return counters_; }
  net::EventLoop& loop() { return loop_; }

  void execute(std::shared_ptr<Request> request);
  void finish(std::shared_ptr<Request> request);
  void observe(const Request& request);  // counts how long it took
  // Empty when memory is short or others wait for it: then call wait_for_memory().
  Buffer take_buffer(size_t size);
  size_t bytes_free() const { return buffers_.bytes_free(); }
  static size_t bytes_of(const Request& read);
  void wait_for_memory(std::shared_ptr<Connection> connection);
  void memory_returned();
  void forget_waiting(const Connection& connection);
  void connection_ended(Connection& connection);
  void report_cut(const Connection& connection, int error, const std::string& reason);

 private:
  // A READ without room for its bytes, or a connection whose next payload has no buffer.
  using Waiter = std::variant<std::shared_ptr<Request>, std::shared_ptr<Connection>>;

  void run();
  void post(net::EventLoop::Task task);
  void begin(Adoption adoption);
  void drain_completed();
  bool give_buffer(Request& request);
  bool held_back(std::shared_ptr<Request>& read);
  void serve_waiting();
  bool serve_first();
  void check_stalled();

  const size_t index_;
  const std::chrono::milliseconds stall_max_;
  Services& services_;
  ConnectionRegistry& registry_;
  Counters counters_;
  net::EventLoop loop_;
  BufferPool buffers_;
  Operations operations_;
  std::unordered_map<ConnectionName, std::shared_ptr<Connection>, ConnectionNameHash> connections_;
  std::atomic<size_t> connection_count_{0};
  std::deque<Waiter> waiting_;
  bool serve_scheduled_ = false;
  bool turn_ = false;       // the connection that resumes now is the first in the queue
  bool turn_lost_ = false;  // there was no room even for that connection
  net::Clock::time_point cut_logged_at_{};
  std::unique_ptr<net::Uring> uring_;

  std::mutex mu_;
  std::vector<std::shared_ptr<Request>> completed_;  // guarded by mu_
  std::thread thread_;
};

}  // namespace braidfs::server
