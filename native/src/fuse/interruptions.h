// Requests whose caller got a signal while it waits. The kernel says so once (INTERRUPT), does not
// say which signal, and waits for the answer in any case. A signal that the program handles must
// not end a call on a file (no local file system does that), so:
// - a wait for a lock ends at once;
// - every other request ends only if a signal waits that ends the process (for a READ, which
//   changes nothing, also one with which people end programs); a caller that is not visible in
//   /proc counts as one with such a signal after kUnseen.
//
// The kernel reports no later signal, so waiting requests are checked every kLook, kAtOnce at a
// time. An INTERRUPT of an unknown request (it may be on its way between two threads, or answered)
// is returned to the kernel, which sends it again if necessary. LANE ONLY: each lane has the
// INTERRUPTs that it read; their requests may wait anywhere.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "fuse/channels.h"
#include "fuse/request.h"
#include "net/event_loop.h"

namespace braidfs::fuse {

class UpcallSink;

class Interruptions {
 public:
  using Clock = net::Clock;
  static constexpr std::chrono::milliseconds kLook{50};
  static constexpr std::chrono::milliseconds kUnseen{1000};
  static constexpr std::chrono::milliseconds kAsked{
      750};  // a READ that takes this long may never end
  static constexpr size_t kAtOnce = 64;
  static constexpr size_t kMax = 1u << 16;

  Interruptions(Channels& channels, DataHandler& data, UpcallSink& upcalls)
      : channels_(channels), data_(data), upcalls_(upcalls) {}

  void attach(net::EventLoop& loop) noexcept { loop_ = &loop; }
  // interrupt: the unique of the INTERRUPT itself; target: that of the request.
  void put(uint64_t interrupt, uint64_t target);

 private:
  struct Interrupted {
    uint64_t interrupt;
    uint64_t target;
    Clock::time_point since;
  };
  void look();
  bool is_over(const Interrupted& one);
  void end(uint64_t target);
  static bool ends(const Waiting& waiting, Clock::duration waited);

  Channels& channels_;
  DataHandler& data_;
  UpcallSink& upcalls_;
  net::EventLoop* loop_ = nullptr;
  std::deque<Interrupted> waiting_;
  bool is_looking_ = false;
};

}  // namespace braidfs::fuse
