// Decides how long an event loop polls for events before it sleeps: no longer than has paid lately.
//
// A thread that sleeps leaves its core idle. To wake an idle core takes an interrupt from another
// core (in a virtual machine: a way through the hypervisor), which can cost more than the request
// itself. The window grows while waits end soon after the window, and shrinks when waits last
// longer than the window may ever be: this is the rule of KVM's halt polling
// (Documentation/virt/kvm/halt-polling.rst).
//
// Between two polls the thread yields, so that a thread that wants the core gets it. But a thread
// that yields does not count as one that sleeps: the scheduler does not wake it ahead of a thread
// that computes. So when another thread had the core for long in most of the recent windows,
// polling rests for a while, and rests twice as long when the same happens again soon after.
//
// Threads: LOOP ONLY. Not here: the polling itself (event_loop.h).
#pragma once
#include <algorithm>
#include <chrono>

#include "core/clock.h"

namespace braidfs::net {

class BusyPoll {
 public:
  using Clock = braidfs::Clock;
  static constexpr std::chrono::microseconds kWindowMin{25};
  // A yield that lasts longer than this gave the core to a thread that computes.
  static constexpr std::chrono::microseconds kYieldMax{100};
  static constexpr int kStrike = 3;
  static constexpr int kStrikesMax = 12;
  static constexpr std::chrono::milliseconds kBusyFor{1};
  static constexpr std::chrono::milliseconds kRestMin{20};
  static constexpr std::chrono::milliseconds kRestMax{10'000};

  // The longest window that the rule may reach. Zero: this thread never polls.
  void window_max(std::chrono::microseconds max) noexcept { max_ = max; }
  bool is_on() const noexcept { return max_.count() > 0; }
  std::chrono::nanoseconds window(Clock::time_point now) const noexcept {
    return now < rests_until_ || now < busy_until_ ? std::chrono::nanoseconds{} : window_;
  }
  // Called when no core idles. The next polls are skipped for kBusyFor, since to ask again costs a
  // system call.
  void machine_is_busy(Clock::time_point now) noexcept { busy_until_ = now + kBusyFor; }

  // Called after a wait that no event ended within the window. `waited` is the whole wait: polling
  // and sleeping.
  void slept(std::chrono::nanoseconds waited) noexcept {
    if (waited > max_) {
      window_ /= 2;
      if (window_ < kWindowMin) window_ = {};
    } else if (waited > window_) {
      window_ = std::min<std::chrono::nanoseconds>(
          std::max<std::chrono::nanoseconds>(window_ * 2, kWindowMin), max_);
    }
  }
  // Called when polling ended, with an event or without one. `preempted`: another thread had the
  // core for longer than kYieldMax at once. When most calls say so, polling rests.
  void looked(bool preempted, Clock::time_point now) noexcept {
    strikes_ = preempted ? strikes_ + kStrike : std::max(strikes_ - 1, 0);
    if (strikes_ < kStrikesMax) return;
    strikes_ = 0;
    const bool again = now - rests_until_ < rest_;
    rest_ = again ? std::min<std::chrono::nanoseconds>(rest_ * 2, kRestMax) : kRestMin;
    rests_until_ = now + rest_;
  }

 private:
  std::chrono::nanoseconds max_{};
  std::chrono::nanoseconds window_{};
  std::chrono::nanoseconds rest_ = kRestMin;
  Clock::time_point rests_until_{};
  Clock::time_point busy_until_{};
  int strikes_ = 0;
};

}  // namespace braidfs::net
