// The events that native code has for Python: a queue with a descriptor that becomes readable
// (docs/INTERFACES.md 3.1). It becomes readable at once; or after kPatience, if all events are of
// kinds that nobody waits for (a handle was closed, lanes changed names), since one by one these
// would wake Python for each file.
//
// Invariant: an event that Python must answer or count is never dropped; there are at most a few of
// them for each handle or waiting request, so they are bounded. LOG events beyond kLogsMax are
// dropped and counted. Threads: ANY THREAD, guarded by mu_.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "braidfs/events.h"
#include "net/unique_fd.h"

namespace braidfs::client {

struct Event {
  EventKind kind = EventKind::kLog;
  uint64_t token = 0;
  uint64_t ino = 0;
  int64_t a = 0;
  int64_t b = 0;
  std::string payload{};
};

class EventQueue {
 public:
  static constexpr size_t kLogsMax = 1024;
  static constexpr std::chrono::milliseconds kPatience{5};

  EventQueue();

  int fd() const noexcept { return wakeup_.get(); }  // readable while events wait
  void put(Event event);
  void log(LogLevel level, uint64_t ino, std::string text);
  std::vector<Event> reap(size_t count_max);
  uint64_t logs_dropped() const;

 private:
  void signal(bool is_urgent);
  void reset_descriptors();

  net::UniqueFd wakeup_;  // of epoll: one of the two is readable
  net::UniqueFd now_;     // eventfd
  net::UniqueFd later_;   // timerfd
  mutable std::mutex mu_;
  bool is_signalled_ = false;  // guarded by mu_: now_ is readable
  bool is_timed_ = false;      // guarded by mu_: later_ runs, or has run out
  std::deque<Event> events_;   // guarded by mu_
  size_t logs_ = 0;            // guarded by mu_: LOG events in events_
  uint64_t logs_dropped_ = 0;  // guarded by mu_
};

}  // namespace braidfs::client
