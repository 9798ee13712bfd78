// Threads of one test that take turns by a seed, in a time that only the test moves.
//
// Each is a fiber. It runs until it is about to take a mutex, or has to wait for one: then, if the
// seed says so, whoever drives the schedule goes on. So every order of two pieces of code that are
// each under a lock of their own comes up sooner or later, and comes again with the same seed. (The
// mutexes are those of the program as it is: test_schedule.cpp stands before pthread_mutex_lock,
// its like and clock_gettime.) One schedule at a time, and nothing of what it runs may wait for
// anything but mutexes.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace braidfs::client::rig {

class Schedule {
 public:
  // Of `one_in` places to be interrupted at one is.
  Schedule(uint64_t seed, uint32_t one_in);
  ~Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // False where a sanitizer owns the mutexes: then nothing is interrupted.
  static bool works() noexcept;

  size_t add(std::function<void()> body);  // which has to return some time
  void run(size_t fiber);                  // a part of it; nothing when it has ended
  void run_to_end(size_t fiber);
  void advance(std::chrono::nanoseconds time) noexcept;

  // Of the fiber that calls.
  static void yield();
  static bool in_fiber() noexcept;
  static void maybe_yield();

 private:
  struct Fiber;
  static void enter(unsigned high, unsigned low);
  void switch_to(Fiber& fiber);
  void leave(bool for_good);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::minstd_rand random_;
  const uint32_t one_in_;
};

}  // namespace braidfs::client::rig
