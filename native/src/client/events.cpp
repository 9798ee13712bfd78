#include "client/events.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <utility>

namespace braidfs::client {

namespace {

bool can_wait(EventKind kind) noexcept {
  return kind == EventKind::kRelease || kind == EventKind::kChangesWait;
}

void set_timer(int timer, std::chrono::nanoseconds left) noexcept {
  itimerspec when{};
  when.it_value.tv_nsec = left.count();  // 0 stops the timer, and it is not readable
  (void)::timerfd_settime(timer, 0, &when, nullptr);
}

}  // namespace

EventQueue::EventQueue()
    : wakeup_(::epoll_create1(EPOLL_CLOEXEC)),
      now_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      later_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  static_assert(kPatience < std::chrono::seconds(1));
  for (const int fd : {now_.get(), later_.get()}) {
    epoll_event readable{.events = EPOLLIN, .data = {.fd = fd}};
    (void)::epoll_ctl(wakeup_.get(), EPOLL_CTL_ADD, fd, &readable);
  }
}

// mu_ is held.
void EventQueue::signal(bool is_urgent) {
  if (is_urgent && !std::exchange(is_signalled_, true)) {
    const uint64_t one = 1;
    (void)!::write(now_.get(), &one, sizeof one);
  } else if (!is_signalled_ && !std::exchange(is_timed_, true)) {
    set_timer(later_.get(), kPatience);
  }
}

// mu_ is held; there are no events.
void EventQueue::reset_descriptors() {
  uint64_t count;
  if (std::exchange(is_signalled_, false)) (void)!::read(now_.get(), &count, sizeof count);
  if (std::exchange(is_timed_, false)) set_timer(later_.get(), std::chrono::nanoseconds(0));
}

void EventQueue::put(Event event) {
  const std::scoped_lock lock(mu_);
  if (event.kind == EventKind::kLog && logs_ >= kLogsMax) {
    ++logs_dropped_;
    return;
  }
  if (event.kind == EventKind::kLog) ++logs_;
  const bool is_urgent = !can_wait(event.kind);
  events_.push_back(std::move(event));
  signal(is_urgent);
}

void EventQueue::log(LogLevel level, uint64_t ino, std::string text) {
  put({.kind = EventKind::kLog,
       .ino = ino,
       .a = static_cast<int64_t>(level),
       .payload = std::move(text)});
}

std::vector<Event> EventQueue::reap(size_t count_max) {
  std::vector<Event> reaped;
  const std::scoped_lock lock(mu_);
  while (!events_.empty() && reaped.size() < count_max) {
    if (events_.front().kind == EventKind::kLog) --logs_;
    reaped.push_back(std::move(events_.front()));
    events_.pop_front();
  }
  if (events_.empty()) reset_descriptors();
  return reaped;
}

uint64_t EventQueue::logs_dropped() const {
  const std::scoped_lock lock(mu_);
  return logs_dropped_;
}

}  // namespace braidfs::client
