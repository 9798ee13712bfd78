// How threads that serve others are scheduled. ANY THREAD, for itself.
#pragma once
#include <sched.h>

namespace braidfs {

// A thread that is woken to answer does not take the core from the thread that woke it, which is
// about to wait for the answer anyway and has more to ask until then (docs/decisions/0044). Whoever
// gave the program another policy meant that one; refused (seccomp), all goes on as it was.
inline void give_way() noexcept {
  const sched_param none{};
  if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace braidfs
