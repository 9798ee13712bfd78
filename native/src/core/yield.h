// How threads that serve others are scheduled. ANY THREAD: the call changes the calling thread
// only.
#pragma once
#include <sched.h>

namespace braidfs {

// Makes this thread yield to the thread that wakes it. The waking thread is about to wait for the
// answer anyway, and often has more requests to send before it does; so a thread that answers must
// not take its core (docs/decisions/0044). A scheduling policy that somebody has set for the
// program is left alone. When the system refuses the change (seccomp), the thread keeps its policy.
inline void yield_to_waker() noexcept {
  const sched_param none{};
  if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace braidfs
