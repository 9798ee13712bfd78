#include "schedule.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace braidfs::client::rig {

namespace {

constexpr size_t kStackBytes = 256u << 10;
thread_local Schedule* schedule = nullptr;  // whose fiber this thread is running
std::atomic<int64_t> virtual_ns = 0;        // 0: time is what it is

}  // namespace

struct Schedule::Fiber {
  std::function<void()> body;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  ucontext_t context{};
  ucontext_t driver{};
  void* fake_stack = nullptr;
  void* driver_fake_stack = nullptr;
  const void* driver_stack = nullptr;
  size_t driver_stack_bytes = 0;
  bool ended = false;
};

namespace {

thread_local void* running = nullptr;  // Schedule::Fiber

}  // namespace

Schedule::Schedule(uint64_t seed, uint32_t one_in)
    : random_(static_cast<uint32_t>(seed % 2147483646 + 1)), one_in_(one_in) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  virtual_ns = now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

Schedule::~Schedule() { virtual_ns = 0; }

bool Schedule::works() noexcept {
#ifdef __SANITIZE_THREAD__
  return false;
#else
  return true;
#endif
}

void Schedule::enter(unsigned high, unsigned low) {
  auto* fiber = reinterpret_cast<Fiber*>((uintptr_t{high} << 32) | low);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &fiber->driver_stack, &fiber->driver_stack_bytes);
#endif
  fiber->body();
  fiber->ended = true;
  schedule->leave(true);
}

size_t Schedule::add(std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->body = std::move(body);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.data();
  fiber->context.uc_stack.ss_size = fiber->stack.size();
  const auto at = reinterpret_cast<uintptr_t>(fiber.get());
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(enter), 2,
              static_cast<unsigned>(at >> 32), static_cast<unsigned>(at));
  fibers_.push_back(std::move(fiber));
  return fibers_.size() - 1;
}

void Schedule::run(size_t fiber) {
  if (!fibers_[fiber]->ended) switch_to(*fibers_[fiber]);
}

void Schedule::run_to_end(size_t fiber) {
  while (!fibers_[fiber]->ended) switch_to(*fibers_[fiber]);
}

void Schedule::switch_to(Fiber& fiber) {
  schedule = this;
  running = &fiber;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fiber.driver_fake_stack, fiber.stack.data(), fiber.stack.size());
#endif
  swapcontext(&fiber.driver, &fiber.context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fiber.driver_fake_stack, nullptr, nullptr);
#endif
  schedule = nullptr;
  running = nullptr;
}

void Schedule::leave([[maybe_unused]] bool for_good) {
  auto* fiber = static_cast<Fiber*>(running);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber->fake_stack, fiber->driver_stack,
                                 fiber->driver_stack_bytes);
#endif
  swapcontext(&fiber->context, &fiber->driver);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fiber->fake_stack, &fiber->driver_stack,
                                  &fiber->driver_stack_bytes);
#endif
}

void Schedule::yield() { schedule->leave(false); }

bool Schedule::in_fiber() noexcept { return schedule != nullptr; }

void Schedule::maybe_yield() {
  if (schedule->random_() % schedule->one_in_ == 0) yield();
}

void Schedule::advance(std::chrono::nanoseconds time) noexcept { virtual_ns += time.count(); }

namespace {

TEST(Schedules, ASeedFindsWhatTwoLocksLeaveOpenAndFindsItAgain) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  const auto is_split = [](uint64_t seed) {
    std::mutex mu;
    int value = 0;
    bool split = false;
    Schedule schedule_of(seed, 2);
    const auto increment = [&] {
      int seen;
      {
        const std::scoped_lock lock(mu);
        seen = value;
      }
      const std::scoped_lock lock(mu);
      split = split || value != seen;
      value = seen + 1;
    };
    const size_t one = schedule_of.add(increment);
    const size_t other = schedule_of.add(increment);
    for (int turn = 0; turn < 8; ++turn) schedule_of.run(turn % 2 == 0 ? one : other);
    schedule_of.run_to_end(one);
    schedule_of.run_to_end(other);
    return split;
  };
  int found = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(is_split(seed), is_split(seed)) << seed;
    if (is_split(seed)) ++found;
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 50);
}

TEST(Schedules, TimeIsTheTestsOwn) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the clocks of this build";
  Schedule schedule_of(1, 2);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(std::chrono::steady_clock::now(), before);
  schedule_of.advance(std::chrono::hours(1));
  EXPECT_EQ(std::chrono::steady_clock::now() - before, std::chrono::hours(1));
}

}  // namespace
}  // namespace braidfs::client::rig

#ifndef __SANITIZE_THREAD__
namespace {

// The C library's own, which the function of that name here stands before.
template <typename Lock>
int (*behind(const char* name))(Lock*) {
  return reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, name));
}

template <typename Lock>
int lock_by_turns(int (*attempt)(Lock*) noexcept, Lock* lock) {
  using Schedule = braidfs::client::rig::Schedule;
  Schedule::maybe_yield();
  while (attempt(lock) != 0) Schedule::yield();
  return 0;
}

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto real = behind<pthread_mutex_t>("pthread_mutex_lock");
  return braidfs::client::rig::Schedule::in_fiber() ? lock_by_turns(pthread_mutex_trylock, mutex)
                                                    : real(mutex);
}

extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = behind<pthread_rwlock_t>("pthread_rwlock_rdlock");
  return braidfs::client::rig::Schedule::in_fiber() ? lock_by_turns(pthread_rwlock_tryrdlock, lock)
                                                    : real(lock);
}

extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = behind<pthread_rwlock_t>("pthread_rwlock_wrlock");
  return braidfs::client::rig::Schedule::in_fiber() ? lock_by_turns(pthread_rwlock_trywrlock, lock)
                                                    : real(lock);
}

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int64_t ns = braidfs::client::rig::virtual_ns.load(std::memory_order_relaxed);
  if (clock != CLOCK_MONOTONIC || ns == 0)
    return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  now->tv_sec = ns / 1'000'000'000;
  now->tv_nsec = ns % 1'000'000'000;
  return 0;
}
#endif
