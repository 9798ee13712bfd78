// Sends notifications to the kernel (invalidate an inode's pages, a name) on threads of its own:
// each may wait for a directory's lock or a locked page, that is, for a request that a lane or
// Python must answer (rule 6). Each kind has a queue with a thread, so that one that waits holds up
// no other kind: one queue for attributes, which never wait; one for pages; several for names, by
// directory. ANY THREAD may push, guarded by mu_. At most kQueueMax single notifications wait; the
// size of a batch (one recall) is bounded by the table that it came from.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fuse/protocol.h"
#include "net/unique_fd.h"

namespace braidfs::fuse {

// The queues, by kind of notification.
inline constexpr uint32_t kAttributesQueue = 0;
inline constexpr uint32_t kPagesQueue = 1;
inline constexpr uint32_t kFirstNamesQueue = 2;
inline constexpr uint32_t kNamesQueueCount = 4;
inline constexpr uint32_t kQueueCount = kFirstNamesQueue + kNamesQueueCount;
inline constexpr uint32_t kAllQueues = (1u << kQueueCount) - 1;

constexpr uint32_t names_queue(uint64_t parent) noexcept {
  return kFirstNamesQueue + static_cast<uint32_t>(parent % kNamesQueueCount);
}

// Reports its token when all notifications that it counts are done.
struct Mark {
  Mark(uint64_t id, uint32_t count) noexcept : token(id), left(count) {}
  const uint64_t token;
  std::atomic<uint32_t> left;
};

// One notification in the kernel's form; without bytes it is a mark: `token` is reported when the
// threads of `queues` (bits) reach it, so that everything before it there has reached the kernel.
struct Notification {
  using Clock = std::chrono::steady_clock;

  std::vector<std::byte> bytes = {};
  uint64_t token = 0;
  uint32_t queues = 0;
  // The kernel got this inode a moment ago, in an answer that a process may not have taken yet. If
  // the kernel does not know the inode, the notification is tried again, and the batch's mark waits
  // for it up to kPatience. A notification of an inode that does not exist yet has no effect, and
  // the kernel would cache the later answer for its whole time.
  bool patient = false;
  Clock::time_point not_before = {};
  std::function<void()> then =
      {};  // called when the kernel has taken it, or never will; must not block
  // Used by the notifier only.
  std::shared_ptr<Mark> mark = {};
  Clock::time_point since = {};  // when it was first tried

  // nodeid: no inode number. length <= 0: to the end of the file; offset < 0: attributes only.
  static Notification of_inode(uint64_t nodeid, int64_t offset, int64_t length);
  // expire: the kernel only looks the name up again; else it drops the name, even one that is in
  // use, with all that is mounted below it.
  static Notification of_entry(uint64_t parent, std::string_view name, bool expire);
  static Notification mark_of(uint64_t token, uint32_t queues = kAllQueues) {
    return {.bytes = {}, .token = token, .queues = queues};
  }
};

// Byte ranges: begin, end.
using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Invalidates all pages of an inode. Pages of `locked` may be locked by a request that waits for a
// mark: their notification goes into `behind`, which must come behind that mark.
void invalidate_pages(std::vector<Notification>& batch, std::vector<Notification>& behind,
                      uint64_t nodeid, Ranges locked);

class Notifier {
 public:
  using Clock = Notification::Clock;
  static constexpr size_t kQueueMax = 65536;
  static constexpr size_t kBytesMax = 4096;  // of one notification
  static constexpr std::chrono::milliseconds kPatience{300};
  static constexpr std::chrono::seconds kTries{
      2};  // from the first try of a patient one to the last
  using Passed = std::function<void(uint64_t token)>;

  // passed: called for each mark on one of the threads; must not block.
  explicit Notifier(Passed passed) : passed_(std::move(passed)) {}
  ~Notifier() { stop(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void start(net::UniqueFd device);
  // Drops what waits (marks count as passed) and waits for what is being sent. False when that
  // takes longer than `wait_ms`: then the connection must be aborted, and stop() called.
  bool stop_within(int wait_ms);
  void stop();

  // 0 or -EAGAIN (the queue is full). Takes a nodeid, not an inode number. `then` is called if the
  // result is 0.
  int invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length,
                       std::function<void()> then = {});
  void push(std::vector<Notification> batch);
  // Takes a notification that pyfuse3 wrote, if it is of a harmless kind. 0 or -errno.
  int forward(std::span<const std::byte> notification);
  // Has the kernel send every unanswered request again, to whichever lane reads first. 0 or -errno.
  int resend() noexcept;
  int device() const noexcept { return device_.get(); }

  uint64_t sent() const noexcept { return sent_.load(std::memory_order_relaxed); }
  uint64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

 private:
  struct Queue {
    std::deque<Notification> ready;
    std::multimap<Clock::time_point, Notification> later;
    std::condition_variable changed;
    std::thread thread;
  };

  int push_one(Notification notification);
  void put(Notification notification);
  void put(uint32_t queue, Notification notification);
  void run(Queue& queue);
  void send(Queue& queue, Notification next);
  bool is_tried_again(Queue& queue, Notification& next);
  void counted(Notification& notification);
  void conclude(Notification& notification);

  const Passed passed_;
  net::UniqueFd device_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> failed_{0};

  std::mutex mu_;
  std::condition_variable ended_;
  std::array<Queue, kQueueCount> queues_;  // guarded by mu_, but for the threads
  bool stopping_ = false;                  // guarded by mu_
  size_t running_ = 0;                     // guarded by mu_
};

}  // namespace braidfs::fuse
