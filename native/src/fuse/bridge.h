// Carries requests to pyfuse3 and its answers back: a SOCK_SEQPACKET socketpair that pyfuse3 uses
// in place of /dev/fuse, a table of the requests that it works on, and one thread.
//
// To Python: a lane sends the request itself, non-blocking, with the slot in place of the pid. When
// the socket is full, the request waits in a bounded queue that the bridge thread empties, so that
// a busy Python never stops a lane. FORGETs are added up per inode (at most one entry for each
// inode that Python knows) and sent by the bridge thread in batches: nobody waits for them, so a
// batch is sent when it is full or kForgetsGather old; single ones would wake Python for each
// removed file. From Python: the bridge thread reads each answer and writes it to the channel that
// its request came from; unique 0 goes to the notifier. When pyfuse3 closes its end, every request
// that waits for it gets EIO.
//
// Requests with opcodes that pyfuse3 does not know (calls) get a slot as well, so that INTERRUPT
// finds them, but reach Python as events; answer() sends Python's answer.
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
  uint64_t queued = 0;   // upcalls for which the socket was full
  uint64_t refused = 0;  // there was no slot, or no room in the queue
  uint64_t unknown = 0;  // answers to unknown requests
  uint64_t forgets = 0;
  uint64_t interrupts = 0;
};

class Bridge final : public UpcallSink {
 public:
  static constexpr size_t kQueueBytesMax = 64u << 20;
  static constexpr size_t kForgetsPerBatch = 2048;
  static constexpr std::chrono::milliseconds kForgetsGather{50};
  static constexpr int kSocketBytes = 4 << 20;
  static constexpr uint32_t kCallsMax = 1u << 14;  // most of them are waiting locks

  // Takes a READ for which Python has opened the file, with the handle and the READ's body. False:
  // there is no room.
  using ReadAgain = std::function<bool(const Upcall& read, std::span<const std::byte> opened)>;

  // choose: for files that Python opened (open_reply.h); empty without passthrough.
  Bridge(Channels& channels, Notifier& notifier, SessionObserver& observer,
         const ClosingTable& closing, EofPages& eof_pages, ReadAgain read_again,
         ChoosePassthrough choose);
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

  // A FLUSH with this result, which Python handles and answers (closing_table.h). ANY THREAD.
  void flushed(const FlushRequest& request, int error);
  // Python's answer to a call. False when no call has that slot, or has it any more. ANY THREAD.
  bool answer(uint32_t slot, int error, std::span<const std::byte> body);
  // ANY THREAD. Passes the batch to the notifier, behind every answer that pyfuse3 has written so
  // far: the kernel must not get such an answer after the notification that invalidates it.
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
  const ChoosePassthrough choose_;
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
  Clock::time_point forgets_due_;                   // guarded by mu_: set by the oldest one
  std::vector<Notification> behind_;                // guarded by mu_: see notify_behind()
  BridgeCounts counts_;                             // guarded by mu_
};

}  // namespace braidfs::fuse
