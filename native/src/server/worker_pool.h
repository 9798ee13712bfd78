// A bounded set of threads for calls that may block: fsync, truncate, unlink, and all I/O where
// io_uring is not allowed.
//
// Tasks run in any order; a task posts its result to the lane that asked. stop() runs the accepted
// tasks, then joins the threads. A pool without threads is for tests, which take its tasks out.
// Threads: ANY THREAD, guarded by mu_.
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

  // False: the queue is full or the pool has stopped, and the task was not taken.
  bool submit(std::function<void()> task);
  void stop();
  // The oldest task that no thread has begun; nullptr: there is none.
  std::function<void()> take();

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
