// Shared and exclusive passage where the exclusive side is never starved: once it waits, no new
// shared holder enters. The checkpoint takes it exclusively while it writes record pages; what
// removes pages or object files (TRUNCATE, DELETE) takes it shared, for else a page written late
// would bring back what was cut off. ANY THREAD.
#pragma once
#include <condition_variable>
#include <mutex>

namespace braidfs::store {

class Gate {
 public:
  void lock() {
    std::unique_lock guard(mu_);
    turn_.wait(guard, [&] { return !closed_; });
    closed_ = true;
    turn_.wait(guard, [&] { return shared_ == 0; });
  }
  void unlock() {
    const std::lock_guard guard(mu_);
    closed_ = false;
    turn_.notify_all();
  }
  void lock_shared() {
    std::unique_lock guard(mu_);
    turn_.wait(guard, [&] { return !closed_; });
    ++shared_;
  }
  void unlock_shared() {
    const std::lock_guard guard(mu_);
    if (--shared_ == 0) turn_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable turn_;
  uint32_t shared_ = 0;
  bool closed_ = false;
};

}  // namespace braidfs::store
