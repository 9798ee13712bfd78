#include "server/worker_pool.h"

#include <utility>

#include "core/yield.h"
#include "server/threads.h"

namespace braidfs::server {

WorkerPool::WorkerPool(std::string name, size_t thread_count, size_t queue_max)
    : queue_max_(queue_max) {
  threads_.reserve(thread_count);
  for (size_t index = 0; index < thread_count; ++index) {
    threads_.emplace_back([this, name] {
      begin_thread(name.c_str());
      yield_to_waker();
      run();
    });
  }
}

bool WorkerPool::submit(std::function<void()> task) {
  {
    const std::scoped_lock lock(mu_);
    if (stopping_ || tasks_.size() >= queue_max_) return false;
    tasks_.push_back(std::move(task));
  }
  work_.notify_one();
  return true;
}

std::function<void()> WorkerPool::take() {
  const std::scoped_lock lock(mu_);
  if (tasks_.empty()) return nullptr;
  std::function<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void WorkerPool::stop() {
  {
    const std::scoped_lock lock(mu_);
    stopping_ = true;
  }
  work_.notify_all();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  while (const auto task = take()) task();  // of a pool without threads
}

void WorkerPool::run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mu_);
      work_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace braidfs::server
