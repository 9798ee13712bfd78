// Requests of the kernel by io_uring in place of read(2) and write(2) on a clone of /dev/fuse
// (FUSE over io_uring: Documentation/filesystems/fuse/fuse-io-uring.rst, Linux 6.14;
// docs/decisions/0036).
//
// The kernel has one queue for each possible core and puts a request into that of the core its
// caller runs on; a lane serves one or more queues. Each queue has entries, memory that a request
// is written to and its answer taken from: with one system call answers go and the entries are free
// for the next requests. FORGET and INTERRUPT still come by the clone, and answers to what came
// there go there.
//
// Threads: reply() ANY THREAD, everything else on the lane's loop, or before it runs.
// Not here: what requests mean (lane.h).
#pragma once
#include <liburing.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "net/event_loop.h"

namespace braidfs::fuse {

// How many queues the kernel has: one for each core that there may ever be. 0: it does not say.
unsigned ring_queue_count();

class Ring final : public net::Queue, public std::enable_shared_from_this<Ring> {
 public:
  // head: the request's header and fixed part; payload: what follows them. False: no more for now.
  using Take =
      std::function<bool(std::span<const std::byte> head, std::span<const std::byte> payload)>;
  using Lost = std::function<void(int error)>;

  // Serves the queues first, first + step, ... below count, with payloads of up to payload_size
  // bytes. `error` is 0 or a negative errno: then the ring is of no use.
  Ring(unsigned first, unsigned step, unsigned count, size_t payload_size, int& error);
  ~Ring() override;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // On the loop's thread: gives the entries to the kernel. lost(errno): it would not have them.
  void start(net::EventLoop& loop, int device, Take take, Lost lost);
  // Nothing more is taken, or again.
  void hold(bool held) noexcept { held_ = held; }
  bool take_one();

  bool take() override;
  bool arm() override;

  // False: the request did not come this way. pieces: the body, of a success.
  bool reply(uint64_t unique, int error, std::span<const iovec> pieces);
  // Answers go nowhere from now on.
  void close();

 private:
  struct Entry;

  void submit(Entry& entry, uint32_t operation, uint64_t commit);
  void commit(Entry& entry);
  void commit_done();
  bool completed(Entry& entry, int result);
  bool deliver(Entry& entry);
  Entry* answered(uint64_t unique, bool& is_closed);

  const size_t payload_size_;
  io_uring ring_{};
  bool is_made_ = false;
  int device_ = -1;
  net::EventLoop* loop_ = nullptr;
  Take take_;
  Lost lost_;
  std::thread::id thread_;
  bool held_ = false;
  bool to_submit_ = false;
  std::vector<std::unique_ptr<Entry>> entries_;

  std::mutex mu_;
  std::vector<Entry*> open_;  // guarded by mu_: with requests that are not answered
  std::vector<Entry*> done_;  // guarded by mu_: answered by other threads, to be given back
  bool closed_ = false;       // guarded by mu_
};

}  // namespace braidfs::fuse
