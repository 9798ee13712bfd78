// The way of requests to pyfuse3 and of its answers back: a SOCK_SEQPACKET socketpair that pyfuse3
// takes for /dev/fuse, a table of what it is working on, and one thread.
//
// Down: a lane sends the request itself, non-blocking, with the slot in place of the pid; when the
// socket is full the request waits in a bounded queue that the bridge thread empties, so that a
// busy Python never stops a lane. FORGETs are added up per inode (at most one entry for each inode
// that Python knows) and sent by the bridge thread in batches: nobody waits for them, so they
// gather for kForgetsGather, or until a batch is full; one by one they would wake Python for each
// file that is removed. Up: the bridge thread reads each answer and writes it to the channel that
// its request came from; unique 0 goes to the notifier. When pyfuse3's end closes, everything that
// waits for it gets EIO.
//
// Opcodes that pyfuse3 does not know (calls) get a slot like the others, so that they are found by
// INTERRUPT, but reach Python as events; answer() sends what Python makes of them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fuse/channels.h"
#include "fuse/closing_table.h"
#include "fuse/eof_pages.h"
#include "fuse/lane.h"
#include "fuse/notifier.h"
#include "fuse/open_reply.h"
#include "fuse/slot_table.h"
#include "net/unique_fd.h"

namespace braidfs::fuse {

struct BridgeCounts {
  uint64_t upcalls = 0;
  uint64_t calls = 0;
  uint64_t answers = 0;
  uint64_t queued = 0;   // upcalls that found the socket full
  uint64_t refused = 0;  // for want of a slot or of room in the queue
  uint64_t unknown = 0;  // answers to no request
  uint64_t forgets = 0;
  uint64_t interrupts = 0;
};

class Bridge final : public UpcallSink {
 public:
  static constexpr size_t kQueueBytesMax = 64u << 20;
  static constexpr size_t kForgetsPerBatch = 2048;
  static constexpr std::chrono::milliseconds kForgetsGather{50};
  static constexpr int kSocketBytes = 4 << 20;
  static constexpr uint32_t kCallsMax = 1u << 14;  // waiting locks are most of them

  // Takes a READ that Python has opened a file for, with the handle and its body; false: there is
  // no room.
  using ReadAgain = std::function<bool(const Upcall& read, std::span<const std::byte> opened)>;

  // pass: of files that Python opened (open_reply.h); empty where none passes through.
  Bridge(Channels& channels, Notifier& notifier, SessionObserver& observer,
         const ClosingTable& closing, EofPages& eof_pages, ReadAgain read_again, Pass pass);
  ~Bridge() override { stop(); }
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Makes the socketpair, sends `init` and starts the thread; the fd is pyfuse3's end. 0 or -errno.
  int start(std::span<const std::byte> init, net::UniqueFd& python_end);
  void stop();

  void upcall(const UpcallRequest& request) override;        // ANY LANE
  void forget(const ForgetRequest& request) override;        // ANY LANE
  void released(const ReleaseRequest& request) override;     // ANY LANE
  std::optional<Waiting> waiting(uint64_t unique) override;  // ANY LANE
  bool interrupt(uint64_t unique) override;                  // ANY LANE

  // The answer of a FLUSH that Python has to see first (closing_table.h). ANY THREAD.
  void flushed(const FlushRequest& request, int error);
  // Python's answer to a call. ANY THREAD. False when no call has that slot (any more).
  bool answer(uint32_t slot, int error, std::span<const std::byte> body);
  // ANY THREAD. To the notifier, behind every answer that pyfuse3 has written until now: what the
  // kernel is told by such an answer must not come after the notification that makes it void.
  void notify_behind(std::vector<Notification> batch);

  const SlotTable& slots() const noexcept { return slots_; }
  BridgeCounts counts() const;

 private:
  using Bytes = std::vector<std::byte>;
  using Clock = std::chrono::steady_clock;
  struct Message;

  void refuse(const RequestHead& head, int error);
  void call(const RequestHead& head, uint32_t opcode, uint32_t bits,
            std::span<const std::byte> body, int outcome);
  bool deliver(const Message& message);
  void run();
  bool receive();
  bool receive_behind(std::vector<Notification> batch);
  void take_answer(std::span<std::byte> answer);
  void send(const Upcall& upcall, std::span<std::byte> answer);
  bool forgets_are_due() const;
  int wait_ms() const;
  void flush();
  bool flush_forgets();
  void python_gone();
  void wake() noexcept;

  Channels& channels_;
  Notifier& notifier_;
  SessionObserver& observer_;
  const ClosingTable& closing_;
  EofPages& eof_pages_;
  const ReadAgain read_again_;
  const Pass pass_;
  SlotTable slots_;
  std::atomic<uint32_t> calls_{0};
  std::atomic<bool> python_gone_{false};
  net::UniqueFd socket_;
  net::UniqueFd wakeup_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  Bytes answer_;  // BRIDGE THREAD ONLY

  mutable std::mutex mu_;
  std::deque<Bytes> queue_;                         // guarded by mu_
  size_t queue_bytes_ = 0;                          // guarded by mu_
  std::unordered_map<uint64_t, uint64_t> forgets_;  // guarded by mu_: nodeid to lookups
  Clock::time_point forgets_due_;                   // guarded by mu_: of the oldest among them
  std::vector<Notification> behind_;                // guarded by mu_: see notify_behind()
  BridgeCounts counts_;                             // guarded by mu_
};

}  // namespace braidfs::fuse
