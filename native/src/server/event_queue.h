// What the server reports to Python: a bounded queue, and an eventfd that is readable while the
// queue has entries.
//
// Nothing waits here: a full queue drops new LOG events (counted), but drops no CLOSED or CORRUPT
// before it has kEventsMax entries. Threads: ANY THREAD, guarded by mu_.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "braidfs/events.h"
#include "net/unique_fd.h"

namespace braidfs::server {

struct Event {
  EventKind kind;
  uint64_t token = 0;
  uint64_t ino = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  std::string payload;
};

class EventQueue {
 public:
  static constexpr size_t kLogsMax = 1024;
  static constexpr size_t kEventsMax = 16384;

  EventQueue();

  int fd() const { return fd_.get(); }
  void log(LogLevel level, std::string text);
  void closed(uint64_t session, uint64_t connection);
  void corrupt(uint32_t target, uint64_t file_id, uint32_t stripe_index, uint64_t offset);
  std::vector<Event> reap(size_t count_max);
  uint64_t dropped() const;

 private:
  void push(Event event, size_t bound);

  net::UniqueFd fd_;
  mutable std::mutex mu_;
  std::deque<Event> events_;
  uint64_t dropped_ = 0;
};

}  // namespace braidfs::server
