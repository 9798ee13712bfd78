// How long a loop looks for events before it sleeps: no longer than has paid lately.
//
// A thread that sleeps leaves its core idle, and what an idle core costs to wake (an interrupt to
// another core; in a virtual machine a way through the hypervisor) can be more than a request
// takes. The window grows while waits end soon after it and shrinks when they last longer than it
// may be: the rule of KVM's halt polling (Documentation/virt/kvm/halt-polling.rst). Between two
// looks the thread yields, so that whoever wants the core has it. But one that yields is not one
// that sleeps: nothing wakes it ahead of a thread that computes. So when somebody else has the core
// for long most of the time, looking rests for a while, and for twice as long when that is so again
// soon.
//
// Threads: LOOP ONLY. Not here: the looking (event_loop.h).
#pragma once
#include <algorithm>
#include <chrono>

namespace braidfs::net {

class BusyPoll {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kWindowMin{25};
  static constexpr std::chrono::microseconds kYieldMax{
      100};  // more is the slice of one who computes
  static constexpr int kStrike = 3;
  static constexpr int kStrikesMax = 12;
  static constexpr std::chrono::milliseconds kBusyFor{1};
  static constexpr std::chrono::milliseconds kRestMin{20};
  static constexpr std::chrono::milliseconds kRestMax{10'000};

  // Zero: never.
  void window_max(std::chrono::microseconds max) noexcept { max_ = max; }
  bool is_on() const noexcept { return max_.count() > 0; }
  std::chrono::nanoseconds window(Clock::time_point now) const noexcept {
    return now < rests_until_ || now < busy_until_ ? std::chrono::nanoseconds{} : window_;
  }
  // No core idles, which is not asked again at once: the answer costs a system call.
  void machine_is_busy(Clock::time_point now) noexcept { busy_until_ = now + kBusyFor; }

  // Nothing came within the window; the wait, looking and sleeping, was so long.
  void slept(std::chrono::nanoseconds waited) noexcept {
    if (waited > max_) {
      window_ /= 2;
      if (window_ < kWindowMin) window_ = {};
    } else if (waited > window_) {
      window_ = std::min<std::chrono::nanoseconds>(
          std::max<std::chrono::nanoseconds>(window_ * 2, kWindowMin), max_);
    }
  }
  // Looking ended, with an event or without; somebody else had had the core for longer than
  // kYieldMax at once, or not. It rests when that is so most of the time.
  void looked(bool gave_way, Clock::time_point now) noexcept {
    strikes_ = gave_way ? strikes_ + kStrike : std::max(strikes_ - 1, 0);
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
