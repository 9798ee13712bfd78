#include "net/event_loop.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "core/yield.h"

namespace braidfs::net {

namespace {

constexpr int kEventsPerTurn = 64;
constexpr int kQueuePolls = 16;  // polls in a row; each only reads memory
// Deferred tasks that defer again after so many rounds wait for the next turn.
constexpr int kDeferredRoundsMax = 8;

// How often this thread lost its core to another thread. A core that the hypervisor takes is not
// counted.
long times_preempted() noexcept {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

// Tells whether fewer threads run, or could run, than there are cores (the fourth field of
// /proc/loadavg, proc_loadavg(5)). True when that cannot be read.
class Machine {
 public:
  bool has_idle_core() const noexcept {
    std::array<char, 64> bytes;
    const ssize_t length = pread(loadavg_.get(), bytes.data(), bytes.size(), 0);
    std::string_view text(bytes.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
    for (int field = 0; field < 3; ++field)
      text.remove_prefix(std::min(text.find(' ') + 1, text.size()));
    int running = 0;  // includes this thread
    std::from_chars(text.data(), text.data() + text.size(), running);
    return running <= cores_;
  }

 private:
  const UniqueFd loadavg_{::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)};
  const int cores_ = get_nprocs();
};

// sendfile(2) has no flag like MSG_NOSIGNAL, so SIGPIPE is blocked for the whole thread.
void block_broken_pipes() noexcept {
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  (void)pthread_sigmask(SIG_BLOCK, &pipes, nullptr);
}

}  // namespace

bool has_idle_core() noexcept {
  static const Machine machine;
  return machine.has_idle_core();
}

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wakeup_) {
    fault_ = -errno;
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // marks the event of the wakeup fd
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.get(), &event) != 0) fault_ = -errno;
}

EventLoop::~EventLoop() = default;

int EventLoop::add(int fd, uint32_t events, Callback callback) {
  auto entry = std::make_unique<Entry>(Entry{fd, events, std::move(callback)});
  epoll_event event{};
  event.events = events;
  event.data.ptr = entry.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
  entries_[fd] = std::move(entry);
  return 0;
}

int EventLoop::modify(int fd, uint32_t events) {
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return -ENOENT;
  Entry& entry = *found->second;
  if (entry.events == events) return 0;
  epoll_event event{};
  event.events = events;
  event.data.ptr = &entry;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) return -errno;
  entry.events = events;
  return 0;
}

void EventLoop::remove(int fd) {
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  found->second->removed = true;
  removed_.push_back(std::move(found->second));
  entries_.erase(found);
}

bool EventLoop::post(Task task) {
  bool first;
  {
    const std::scoped_lock lock(mu_);
    if (posted_.size() >= kPostedMax) return false;
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (first) wake();
  return true;
}

void EventLoop::watch(std::weak_ptr<Queue> queue) {
  std::erase_if(queues_, [](const auto& one) { return one.expired(); });
  queues_.push_back(std::move(queue));
}

EventLoop::Timer EventLoop::call_at(Clock::time_point when, Task task) {
  const Timer timer{when, ++timer_number_};
  timers_.emplace(timer, std::move(task));
  return timer;
}

void EventLoop::cancel(Timer timer) { timers_.erase(timer); }

void EventLoop::defer(Task task) { deferred_.push_back(std::move(task)); }

void EventLoop::busy_poll(std::chrono::microseconds window_max, std::function<bool()> worth,
                          std::function<bool()> idles) {
  poll_.window_max(window_max);
  worth_polling_ = std::move(worth);
  has_idle_core_ = std::move(idles);
}

void EventLoop::run() {
  yield_to_waker();
  block_broken_pipes();
  for (;;) {
    {
      const std::scoped_lock lock(mu_);
      if (stopping_) return;
    }
    turn(-1);
  }
}

void EventLoop::stop() {
  {
    const std::scoped_lock lock(mu_);
    stopping_ = true;
  }
  wake();
}

void EventLoop::turn(int timeout_ms) {
  dispatch(deferred_.empty() ? wait_ms(timeout_ms) : 0);
  run_timers();
  run_deferred();
  removed_.clear();
}

std::optional<Clock::time_point> EventLoop::due() const {
  if (!deferred_.empty()) return now_;
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.when;
}

int EventLoop::wait_ms(int timeout_ms) const {
  if (timers_.empty()) return timeout_ms;
  const auto left = timers_.begin()->first.when - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  const int until = static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
  return timeout_ms < 0 ? until : std::min(timeout_ms, until);
}

int EventLoop::wait(std::span<epoll_event> ready, int timeout_ms) {
  if (timeout_ms == 0 || !poll_.is_on() || !worth_polling_()) return sleep(ready, timeout_ms);
  const auto began = Clock::now();
  if (const auto found = poll_for_events(ready, began)) return *found;
  const int count = sleep(ready, timeout_ms);
  poll_.slept(Clock::now() - began);
  return count;
}

int EventLoop::sleep(std::span<epoll_event> ready, int timeout_ms) {
  if (timeout_ms != 0 && !queues_.empty()) {
    now_ = Clock::now();
    if (any_queue(&Queue::arm)) timeout_ms = 0;
  }
  return epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout_ms);
}

// A queue that is destroyed during this call keeps its place in queues_ until the next watch().
bool EventLoop::any_queue(bool (Queue::*ask)()) {
  bool any = false;
  for (size_t index = 0; index < queues_.size(); ++index) {
    const auto queue = queues_[index].lock();
    any = (queue && (*queue.*ask)()) || any;
  }
  return any;
}

bool EventLoop::poll_queues() {
  if (queues_.empty()) return false;
  for (int poll = 0; poll < kQueuePolls; ++poll) {
    if (any_queue(&Queue::take)) return true;
  }
  return false;
}

// Polls for events. Returns what epoll_wait(2) returned, 0 when a queue had something, nullopt when
// the window ended without an event.
std::optional<int> EventLoop::poll_for_events(std::span<epoll_event> ready,
                                              Clock::time_point began) {
  const auto window = poll_.window(began);
  if (window.count() == 0) return std::nullopt;
  if (!has_idle_core_()) {
    poll_.machine_is_busy(began);
    return std::nullopt;
  }
  const long switches = times_preempted();
  auto before = began;
  while (before - began < window) {
    now_ = before;
    if (poll_queues()) {
      polls_paid_.fetch_add(1, std::memory_order_relaxed);
      poll_.looked(false, before);
      return 0;
    }
    sched_yield();
    const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    const auto now = Clock::now();
    const bool lost_core = now - before > BusyPoll::kYieldMax && times_preempted() != switches;
    if (count != 0 || lost_core) {
      if (count > 0) polls_paid_.fetch_add(1, std::memory_order_relaxed);
      poll_.looked(lost_core, now);
      return count == 0 ? std::nullopt : std::optional(count);
    }
    before = now;
  }
  poll_.looked(false, before);
  return std::nullopt;
}

void EventLoop::dispatch(int timeout_ms) {
  std::array<epoll_event, kEventsPerTurn> ready;
  const int count = wait(ready, timeout_ms);
  now_ = Clock::now();
  bool posted = false;
  for (int index = 0; index < count; ++index) {
    auto* entry = static_cast<Entry*>(ready[index].data.ptr);
    if (entry == nullptr) {
      posted = true;
    } else if (!entry->removed) {
      entry->callback(ready[index].events);
    }
  }
  if (posted) run_posted();
  (void)any_queue(&Queue::take);
}

void EventLoop::run_posted() {
  uint64_t count;
  (void)!::read(wakeup_.get(), &count, sizeof count);
  running_.clear();
  {
    const std::scoped_lock lock(mu_);
    running_.swap(posted_);
  }
  for (auto& task : running_) task();
  running_.clear();
}

void EventLoop::run_timers() {
  while (!timers_.empty() && timers_.begin()->first.when <= now_) {
    const auto due = timers_.extract(timers_.begin());
    due.mapped()();
  }
}

void EventLoop::run_deferred() {
  for (int round = 0; round < kDeferredRoundsMax && !deferred_.empty(); ++round) {
    std::vector<Task> tasks;
    tasks.swap(deferred_);
    for (auto& task : tasks) task();
    tasks.clear();
    if (deferred_.empty()) deferred_.swap(tasks);  // keeps the vector's memory
  }
}

void EventLoop::wake() noexcept {
  const uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof one);
}

}  // namespace braidfs::net
