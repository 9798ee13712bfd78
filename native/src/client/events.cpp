#include "client/events.h"

#include <sys/eventfd.h>

#include <utility>

namespace braidfs::client {

EventQueue::EventQueue() : wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void EventQueue::put(Event event) {
  const std::scoped_lock lock(mu_);
  if (event.kind == EventKind::kLog && logs_ >= kLogsMax) {
    ++logs_dropped_;
    return;
  }
  if (event.kind == EventKind::kLog) ++logs_;
  events_.push_back(std::move(event));
  if (events_.size() > 1) return;
  const uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof one);
}

void EventQueue::log(LogLevel level, uint64_t ino, std::string text) {
  put({.kind = EventKind::kLog, .ino = ino, .a = static_cast<int64_t>(level),
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
  if (events_.empty()) {
    uint64_t count;
    (void)!::read(wakeup_.get(), &count, sizeof count);
  }
  return reaped;
}

uint64_t EventQueue::logs_dropped() const {
  const std::scoped_lock lock(mu_);
  return logs_dropped_;
}

}  // namespace braidfs::client
