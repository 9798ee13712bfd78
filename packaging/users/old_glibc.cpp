// What lets a wheel that is built with today's glibc run with 2.28, as manylinux_2_28 promises: the
// functions that moved into libc.so.6 later, under new versions, by their versions of before.
// The linker's --wrap gives every call of F to __wrap_F (manylinux.cmake).
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define BEFORE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define BEFORE "GLIBC_2.17"
#else
#error "which version had these functions here?"
#endif
#define OLD(name) asm(".symver old_" #name "," #name "@" BEFORE)

extern "C" {

using Start = void* (*)(void*);
using Once = void (*)();
using Destructor = void (*)(void*);

int old_pthread_create(pthread_t*, const pthread_attr_t*, Start, void*);
int old_pthread_join(pthread_t, void**);
int old_pthread_once(pthread_once_t*, Once);
int old_pthread_sigmask(int, const sigset_t*, sigset_t*);
int old___pthread_key_create(pthread_key_t*, Destructor);
OLD(pthread_create);
OLD(pthread_join);
OLD(pthread_once);
OLD(pthread_sigmask);
OLD(__pthread_key_create);

// libstdc++ asks whether it may count without atomic operations: it never may.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* how, Start start, void* with) {
  return old_pthread_create(thread, how, start, with);
}

int __wrap_pthread_join(pthread_t thread, void** result) {
  return old_pthread_join(thread, result);
}

int __wrap_pthread_once(pthread_once_t* control, Once call) {
  return old_pthread_once(control, call);
}

int __wrap_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  return old_pthread_sigmask(how, set, before);
}

int __wrap___pthread_key_create(pthread_key_t* key, Destructor destructor) {
  return old___pthread_key_create(key, destructor);
}

int __wrap_stat(const char* name, struct stat* seen) {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, seen, 0));
}

// A wait until a time of the steady clock; glibc 2.28 has only the wall clock for that. A step of
// the wall clock makes this one wait longer or shorter, and its callers look again.
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  constexpr long kSecond = 1'000'000'000;
  timespec here{}, wall{};
  ::clock_gettime(clock, &here);
  ::clock_gettime(CLOCK_REALTIME, &wall);
  timespec then{wall.tv_sec + until->tv_sec - here.tv_sec,
                wall.tv_nsec + until->tv_nsec - here.tv_nsec};
  if (then.tv_nsec < 0) then = {then.tv_sec - 1, then.tv_nsec + kSecond};
  if (then.tv_nsec >= kSecond) then = {then.tv_sec + 1, then.tv_nsec - kSecond};
  return ::pthread_cond_timedwait(condition, mutex, &then);
}
}
