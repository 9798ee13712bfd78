// Notifications to the kernel (invalidate an inode's pages, a name), written by one thread of their
// own: each may wait for a directory's lock or a locked page, that is, for a request that a lane or
// Python must answer (rule 6). ANY THREAD may push, guarded by mu_; at most kQueueMax single ones
// wait; a batch (one recall) is bounded by the table that it came from.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "fuse/protocol.h"
#include "net/unique_fd.h"

namespace braidfs::fuse {

// One notification as the kernel takes it; without bytes a mark: `token` is told when the thread
// comes to it, so that everything before it has reached the kernel.
struct Notification {
  std::vector<std::byte> bytes = {};
  uint64_t token = 0;
  // The kernel was told of this inode a moment ago, in an answer that a process has yet to take: if
  // the inode is not there, it is waited for (kPatience). A notification of an inode that comes
  // later leaves no trace, and the answer would be believed for its whole time.
  bool patient = false;
  std::function<void()> then = {};  // called when the kernel has taken it, or never will; must not block

  // nodeids, not inode numbers. length <= 0: to the end of the file; offset < 0: attributes only.
  static Notification of_inode(uint64_t nodeid, int64_t offset, int64_t length);
  // expire: the name is only asked for again; else it is dropped, even one that is in use.
  static Notification of_entry(uint64_t parent, std::string_view name, bool expire);
  static Notification mark(uint64_t token) { return {.bytes = {}, .token = token}; }
};

// Byte ranges: begin, end.
using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// All pages of an inode. Pages of the ranges may be locked by a request that waits for a mark: theirs
// go into `behind`, which is to come behind it.
void invalidate_pages(std::vector<Notification>& batch, std::vector<Notification>& behind,
                      uint64_t nodeid, Ranges locked);

class Notifier {
 public:
  static constexpr size_t kQueueMax = 65536;
  static constexpr size_t kBytesMax = 4096;  // of one notification
  static constexpr std::chrono::milliseconds kPatience{300};
  using Passed = std::function<void(uint64_t token)>;

  // passed: called on the notifier's thread for each mark; must not block.
  explicit Notifier(Passed passed) : passed_(std::move(passed)) {}
  ~Notifier() { stop(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void start(net::UniqueFd device);
  // Drops what waits (marks count as passed); returns when the one in work is done. False when it is
  // not done within `wait_ms`: the connection has to be aborted, then stop() once more.
  bool stop_within(int wait_ms);
  void stop();

  // 0 or -EAGAIN (the queue is full) or -EINVAL. nodeid, not inode number.
  // then: if it is taken.
  int invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length, std::function<void()> then = {});
  int invalidate_entry(uint64_t parent, std::string_view name);
  void push(std::vector<Notification> batch);
  // A notification as pyfuse3 wrote it; only the kinds that cannot hurt are taken.
  int forward(std::span<const std::byte> notification);
  // Makes the kernel look up every name again: at once, without waiting for any lock, and past
  // those that wait. 0, or -errno of a kernel that cannot.
  int advance_epoch() noexcept;
  // Has the kernel send every unanswered request again, to whichever lane comes first.
  int resend() noexcept { return tell(kNotifyResend); }
  int device() const noexcept { return device_.get(); }

  uint64_t sent() const noexcept { return sent_.load(std::memory_order_relaxed); }
  uint64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

 private:
  int push_one(Notification notification);
  int tell(int code) noexcept;  // a notification without a body
  void send(const Notification& notification);
  ssize_t write_patiently(const Notification& notification);
  void drop(const Notification& notification);
  void run();

  const Passed passed_;
  net::UniqueFd device_;
  std::thread thread_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> failed_{0};

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Notification> queue_;  // guarded by mu_
  bool stopping_ = false;           // guarded by mu_
  bool ended_ = true;               // guarded by mu_
};

}  // namespace braidfs::fuse
