// Requests whose caller got a signal while it waits: the kernel says so once (INTERRUPT), not which
// signal, and waits for the answer whatever comes. A signal that the program handles must not end a
// call on a file, which no local file system does, so:
// - a wait for a lock ends at once;
// - every other request is answered when it is done, unless a signal is there that ends the process
// (or
//   for a READ, which changes nothing, one by which people end programs); who is not visible in
//   /proc is taken for such a one after kUnseen.
// As no later signal is told, those that wait are looked at every kLook, kAtOnce of them at a time.
// An INTERRUPT of a request that is unknown here (it may be on its way between two threads, or
// answered) is given back to the kernel, which sends it again if it has to. LANE ONLY: each lane
// has those that it read; the requests may wait anywhere.
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
      750};  // a READ that takes so long may never end
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
