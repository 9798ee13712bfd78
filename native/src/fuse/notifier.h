// Notifications to the kernel (invalidate an inode's pages, a name), written by one thread of their
// own: each may wait for a directory's lock or a locked page, that is, for a request that a lane or
// Python must answer (rule 6). ANY THREAD may push, guarded by mu_; at most kQueueMax wait.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "net/unique_fd.h"

namespace braidfs::fuse {

class Notifier {
 public:
  static constexpr size_t kQueueMax = 65536;
  static constexpr size_t kBytesMax = 4096;  // of one notification

  Notifier() = default;
  ~Notifier() { stop(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void start(net::UniqueFd device);
  // Drops what waits; returns when the one in work is done. False when it is not done within
  // `wait_ms`: the connection has to be aborted, then stop() once more.
  bool stop_within(int wait_ms);
  void stop();

  // 0 or -EAGAIN (the queue is full) or -EINVAL. nodeid, not inode number.
  int invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length);
  int invalidate_entry(uint64_t parent, std::string_view name);
  // A notification as pyfuse3 wrote it; only the kinds that cannot hurt are taken.
  int forward(std::span<const std::byte> notification);

  uint64_t sent() const noexcept { return sent_.load(std::memory_order_relaxed); }
  uint64_t failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

 private:
  using Bytes = std::vector<std::byte>;
  int push(Bytes notification);
  void run();

  net::UniqueFd device_;
  std::thread thread_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> failed_{0};

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Bytes> queue_;  // guarded by mu_
  bool stopping_ = false;    // guarded by mu_
  bool ended_ = true;        // guarded by mu_
};

}  // namespace braidfs::fuse
