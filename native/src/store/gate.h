// A lock with a shared and an exclusive side whose exclusive side never starves: once the exclusive
// side waits, no new shared holder enters.
//
// The checkpoint takes it exclusively while it writes record pages. Operations that remove pages or
// object files (TRUNCATE, DELETE) take it shared: otherwise a page that is written late would bring
// back what they removed. ANY THREAD.
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
