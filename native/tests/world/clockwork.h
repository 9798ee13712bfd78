// What decides everything in a world: its time, its chance, and what is to happen when; and the
// trace of what has happened. One thread, one world at a time.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "core/clock.h"

namespace braidfs::world {

using Time = Clock::time_point;
using Duration = Clock::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The time that the programs read while it lives. It stands still until somebody moves it.
class VirtualTime {
 public:
  VirtualTime() noexcept;
  ~VirtualTime() { Clock::set(nullptr); }
  VirtualTime(const VirtualTime&) = delete;
  VirtualTime& operator=(const VirtualTime&) = delete;

  static Time now() noexcept { return now_; }
  static void advance_to(Time when) noexcept {
    if (when > now_) now_ = when;
  }

 private:
  static inline Time now_{};
};

class Chance {
 public:
  explicit Chance(uint64_t seed) noexcept : state_(seed) {}

  uint64_t next() noexcept;  // splitmix64
  uint32_t pick(uint32_t count) noexcept { return static_cast<uint32_t>(next() % count); }
  bool one_in(uint32_t count) noexcept { return pick(count) == 0; }
  Duration up_to(Duration most) noexcept {
    return Duration(static_cast<Duration::rep>(next() % static_cast<uint64_t>(most.count() + 1)));
  }

 private:
  uint64_t state_;
};

// What happens at which time. What is due at one time happens in the order in which it was noted.
class Agenda {
 public:
  using Task = std::function<void()>;

  void at(Time when, Task task) { tasks_.emplace(std::pair(when, ++number_), std::move(task)); }
  void after(Duration delay, Task task) { at(VirtualTime::now() + delay, std::move(task)); }
  std::optional<Time> first() const;
  void run_first();
  void clear() { tasks_.clear(); }

 private:
  std::map<std::pair<Time, uint64_t>, Task> tasks_;
  uint64_t number_ = 0;
};

class Trace {
 public:
  explicit Trace(bool prints) noexcept : prints_(prints) {}
  void note(const char* format, ...) __attribute__((format(printf, 2, 3)));
  uint64_t hash() const noexcept { return hash_; }

 private:
  const bool prints_;
  uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
};

struct Clockwork {
  Clockwork(uint64_t seed, bool prints) : chance(seed), trace(prints) {}

  VirtualTime time;
  Chance chance;
  Agenda agenda;
  Trace trace;
  bool calm = false;                                // faults have ended
  uint64_t number() noexcept { return ++number_; }  // each one once in a world

 private:
  uint64_t number_ = 0;
};

}  // namespace braidfs::world
