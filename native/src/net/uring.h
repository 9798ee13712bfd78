// One io_uring for one lane: reads and writes that would block leave here and complete in the
// lane's own loop. LANE ONLY, except probe().
// Invariants: at most kInFlightMax operations; the memory named by one stays valid until its
// completion was called (the caller's duty: requests own it); the destructor waits for all.
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
  using Done = std::function<void(int result)>;  // bytes, or -errno

  // 0 when this kernel and its seccomp policy let us, else -errno.
  static int probe();

  explicit Uring(EventLoop& loop) : loop_(loop) {}
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  int open();  // 0 or -errno
  size_t room() const { return free_.size(); }
  // Only when room() > 0; then it cannot fail: the submission queue has a place for each slot.
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
