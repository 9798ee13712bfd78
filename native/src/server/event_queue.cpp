#include "server/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace braidfs::server {

EventQueue::EventQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void EventQueue::log(LogLevel level, std::string text) {
  push({.kind = EventKind::kLog, .a = static_cast<uint64_t>(level), .payload = std::move(text)},
       kLogsMax);
}

void EventQueue::closed(uint64_t session, uint64_t connection) {
  push({.kind = EventKind::kClosed, .a = session, .b = connection, .payload = {}}, kEventsMax);
}

void EventQueue::corrupt(uint32_t target, uint64_t file_id, uint32_t stripe_index,
                         uint64_t offset) {
  push({.kind = EventKind::kCorrupt,
        .token = target,
        .ino = file_id,
        .a = stripe_index,
        .b = offset,
        .payload = {}},
       kEventsMax);
}

std::vector<Event> EventQueue::reap(size_t count_max) {
  std::vector<Event> taken;
  const std::scoped_lock lock(mu_);
  while (!events_.empty() && taken.size() < count_max) {
    taken.push_back(std::move(events_.front()));
    events_.pop_front();
  }
  if (events_.empty()) {
    uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof count);
  }
  return taken;
}

uint64_t EventQueue::dropped() const {
  const std::scoped_lock lock(mu_);
  return dropped_;
}

void EventQueue::push(Event event, size_t bound) {
  const std::scoped_lock lock(mu_);
  if (events_.size() >= bound) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(fd_.get(), &one, sizeof one);
}

}  // namespace braidfs::server
