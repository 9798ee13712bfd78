// How the threads of the server begin. ANY THREAD: each calls it for itself.
#pragma once
#include <pthread.h>
#include <signal.h>

namespace braidfs::server {

// Names this thread and blocks all signals: they belong to Python's main thread.
inline void begin_thread(const char* name) noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

}  // namespace braidfs::server
