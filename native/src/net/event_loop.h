// The loop of one thread over epoll: readiness callbacks, tasks posted by other threads, timers.
//
// A turn is: wait; call the callbacks of ready fds (one call per fd; the callback bounds its own
// work); run posted tasks; run due timers; run deferred tasks. Deferred tasks are what this turn's
// callbacks left for its end, such as one sendmsg for many frames. Before the loop sleeps, it may
// poll for events for a moment (busy_poll()).
//
// Callbacks may add and remove any fd, their own included: a removed entry lives until the end of
// the turn, but is not called again. The loop looks into each Queue in every turn, and asks the
// queue to signal its fd only when the loop is about to sleep: so a busy queue costs no system
// call.
//
// Threads: everything is LOOP ONLY (or before run()), except post() and stop(), which are ANY
// THREAD. Not here: what flows through the fds (frame_stream.h).
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "net/busy_poll.h"
#include "net/unique_fd.h"

namespace braidfs::net {

using braidfs::Clock;

// True when fewer threads run, or could run, than there are cores, and when that cannot be read.
// ANY THREAD.
bool has_idle_core() noexcept;

// Something that fills up in memory, such as the completion queue of a network card.
class Queue {
 public:
  // Takes what is in the queue, or part of it. True: there was something.
  virtual ~Queue() = default;
  virtual bool take() = 0;
  // The loop is about to sleep: from now on the queue signals its fd. True: the queue already holds
  // something, and the loop does not sleep.
  virtual bool arm() = 0;
};

class EventLoop {
 public:
  using Callback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLHUP ...
  using Task = std::function<void()>;
  struct Timer {  // Identifies a timer; a default-constructed one identifies none.
    Clock::time_point when{};
    uint64_t number = 0;
    auto operator<=>(const Timer&) const = default;
  };

  static constexpr size_t kPostedMax = 1u << 16;
  static constexpr uint32_t kBusyPollUsMax = 1000;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // 0, or -errno of the constructor's system calls. When it is not 0, nothing else may be called.
  int fault() const noexcept { return fault_; }

  // Watches an fd, level triggered. The fd still belongs to the caller, who calls remove() before
  // closing it. 0 or -errno.
  int add(int fd, uint32_t events, Callback callback);
  int modify(int fd, uint32_t events);
  void remove(int fd);

  void watch(std::weak_ptr<Queue> queue);  // until the queue is destroyed

  // ANY THREAD. False: the list of posted tasks is full, and the task was not taken. Tasks that are
  // left when the loop is destroyed are dropped, not called.
  [[nodiscard]] bool post(Task task);

  Timer call_at(Clock::time_point when, Task task);
  void cancel(Timer timer);
  // Runs the task at the end of the current turn, before the loop sleeps.
  void defer(Task task);
  // The time at which this turn began: cheap to read, and the same for everything within the turn.
  Clock::time_point now() const noexcept { return now_; }

  // Before each sleep, polls for events for at most `window_max`, when worth() and idles() both
  // return true (busy_poll.h).
  void busy_poll(std::chrono::microseconds window_max, std::function<bool()> worth,
                 std::function<bool()> idles = has_idle_core);
  uint64_t polls_paid() const noexcept { return polls_paid_.load(std::memory_order_relaxed); }

  void run();                 // returns after stop()
  void turn(int timeout_ms);  // one turn, for tests and for loops inside other loops
  // For who calls turn(): a turn has something to do when this descriptor is readable, or at this
  // time; nullopt: no task waits for a time.
  int fd() const noexcept { return epoll_.get(); }
  std::optional<Clock::time_point> due() const;
  void stop();  // ANY THREAD. run() returns after the current turn.

 private:
  struct Entry {
    int fd;
    uint32_t events;
    Callback callback;
    bool removed = false;
  };

  int wait_ms(int timeout_ms) const;
  int wait(std::span<epoll_event> ready, int timeout_ms);
  int sleep(std::span<epoll_event> ready, int timeout_ms);
  std::optional<int> poll_for_events(std::span<epoll_event> ready, Clock::time_point began);
  bool any_queue(bool (Queue::*ask)());
  bool poll_queues();
  void dispatch(int timeout_ms);
  void run_posted();
  void run_timers();
  void run_deferred();
  void wake() noexcept;

  UniqueFd epoll_;
  UniqueFd wakeup_;
  int fault_ = 0;
  Clock::time_point now_ = Clock::now();
  std::unordered_map<int, std::unique_ptr<Entry>> entries_;
  std::vector<std::unique_ptr<Entry>> removed_;  // entries live here until the end of the turn
  std::vector<std::weak_ptr<Queue>> queues_;
  std::map<Timer, Task> timers_;
  uint64_t timer_number_ = 0;
  std::vector<Task> deferred_;
  std::vector<Task> running_;

  BusyPoll poll_;
  std::function<bool()> worth_polling_;
  std::function<bool()> has_idle_core_;
  std::atomic<uint64_t> polls_paid_ = 0;  // written by the loop, read by any thread

  std::mutex mu_;
  std::vector<Task> posted_;  // guarded by mu_
  bool stopping_ = false;     // guarded by mu_
};

}  // namespace braidfs::net
