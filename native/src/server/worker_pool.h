// A bounded set of threads for calls that may block: fsync, truncate, unlink, and all I/O where
// io_uring is not allowed. ANY THREAD, guarded by mu_. Tasks run in no promised order; a task
// posts its own result to the lane that asked. stop() runs what was accepted, then joins.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace braidfs::server {

class WorkerPool {
 public:
  WorkerPool(std::string name, size_t thread_count, size_t queue_max);
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the queue is full or the pool has stopped: the task was not taken.
  bool submit(std::function<void()> task);
  void stop();

 private:
  void run();

  const size_t queue_max_;
  std::mutex mu_;
  std::condition_variable work_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace braidfs::server
