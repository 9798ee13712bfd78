// One io_uring of one lane. Reads and writes that would block are started here and complete in the
// lane's own event loop.
//
// Threads: LANE ONLY, except probe(), which is ANY THREAD. Invariants: at most kInFlightMax
// operations are in flight; the memory that an operation names stays valid until its completion was
// called (the caller's duty: requests own it); the destructor waits for all operations.
#pragma once
#include <liburing.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "net/event_loop.h"

namespace braidfs::net {

struct UringIo {
  int fd;
  bool write;
  std::span<const iovec> parts;
  uint64_t offset;
};

class Uring {
 public:
  static constexpr unsigned kInFlightMax = 256;
  using Done = std::function<void(int result)>;  // count of bytes, or -errno

  // 0 when this kernel and its seccomp policy allow io_uring, else -errno.
  static int probe();

  explicit Uring(EventLoop& loop) : loop_(loop) {}
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  int open();  // 0 or -errno
  size_t room() const { return free_.size(); }
  // Starts an operation. Call only when room() > 0; then it cannot fail, because the submission
  // queue has a place for each slot.
  void start(const UringIo& io, Done done);
  size_t in_flight() const { return in_flight_; }

 private:
  void schedule_submit();
  void submit();
  void reap();

  EventLoop& loop_;
  io_uring ring_{};
  bool open_ = false;
  bool submit_scheduled_ = false;
  size_t in_flight_ = 0;
  std::vector<Done> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace braidfs::net
