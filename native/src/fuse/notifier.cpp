#include "fuse/notifier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <iterator>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr uint64_t kPage = 4096;

template <typename T>
std::vector<std::byte> notification(int code, const T& body, std::string_view name, bool has_name) {
  const size_t tail = has_name ? name.size() + 1 : 0;  // with its NUL
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + sizeof(body) + tail);
  header.error = code;  // unique 0: error is the kind of notification
  std::vector<std::byte> bytes(header.len);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &body, sizeof(body));
  if (has_name) std::memcpy(bytes.data() + sizeof(header) + sizeof(body), name.data(), name.size());
  return bytes;
}

bool may_pass(int32_t code) {
  return code == FUSE_NOTIFY_INVAL_INODE || code == FUSE_NOTIFY_INVAL_ENTRY ||
         code == FUSE_NOTIFY_DELETE;
}

}  // namespace

Notification Notification::of_inode(uint64_t nodeid, int64_t offset, int64_t length) {
  const fuse_notify_inval_inode_out body{nodeid, offset, length};
  return {.bytes = notification(FUSE_NOTIFY_INVAL_INODE, body, {}, false)};
}

Notification Notification::of_entry(uint64_t parent, std::string_view name, bool expire) {
  fuse_notify_inval_entry_out body{};
  body.parent = parent;
  body.namelen = static_cast<uint32_t>(name.size());
  body.flags = expire ? kEntryExpireOnly : 0;
  return {.bytes = notification(FUSE_NOTIFY_INVAL_ENTRY, body, name, true)};
}

void invalidate_pages(std::vector<Notification>& batch, std::vector<Notification>& behind,
                      uint64_t nodeid, Ranges locked) {
  std::ranges::sort(locked);
  uint64_t at = 0;
  for (const auto& [begin, end] : locked) {
    const uint64_t first = begin / kPage * kPage;
    if (first > at) {
      batch.push_back(Notification::of_inode(nodeid, static_cast<int64_t>(at),
                                             static_cast<int64_t>(first - at)));
    }
    at = std::max(at, (end + kPage - 1) / kPage * kPage);
  }
  batch.push_back(Notification::of_inode(nodeid, static_cast<int64_t>(at), 0));
  if (at > 0) behind.push_back(Notification::of_inode(nodeid, 0, static_cast<int64_t>(at)));
}

void Notifier::start(net::UniqueFd device) {
  device_ = std::move(device);
  stopping_ = false;
  ended_ = false;
  thread_ = std::thread([this] { run(); });
}

bool Notifier::stop_within(int wait_ms) {
  std::unique_lock lock(mu_);
  stopping_ = true;
  std::deque<Notification> dropped;
  dropped.swap(queue_);
  changed_.notify_all();
  lock.unlock();
  for (const Notification& waiting : dropped) drop(waiting);
  lock.lock();
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return ended_; });
}

void Notifier::stop() {
  if (!thread_.joinable()) return;
  stop_within(0);
  thread_.join();
  device_.reset();
}

int Notifier::push_one(Notification notification) {
  std::unique_lock lock(mu_);
  if (stopping_) {
    lock.unlock();
    drop(notification);
    return 0;
  }
  if (queue_.size() >= kQueueMax) return -EAGAIN;
  queue_.push_back(std::move(notification));
  changed_.notify_all();
  return 0;
}

void Notifier::push(std::vector<Notification> batch) {
  {
    const std::scoped_lock lock(mu_);
    if (!stopping_) {
      std::move(batch.begin(), batch.end(), std::back_inserter(queue_));
      changed_.notify_all();
      return;
    }
  }
  for (const Notification& waiting : batch) drop(waiting);
}

// After stop(): what waits for it need not any longer.
void Notifier::drop(const Notification& notification) {
  if (notification.bytes.empty()) passed_(notification.token);
  if (notification.then) notification.then();
}

int Notifier::invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length,
                               std::function<void()> then) {
  Notification made = Notification::of_inode(nodeid, offset, length);
  made.then = std::move(then);
  return push_one(std::move(made));
}

int Notifier::invalidate_entry(uint64_t parent, std::string_view name) {
  if (name.empty() || name.size() > NAME_MAX) return -EINVAL;
  return push_one(Notification::of_entry(parent, name, false));
}

int Notifier::forward(std::span<const std::byte> bytes) {
  const auto header = load<fuse_out_header>(bytes);
  if (!header || bytes.size() > kBytesMax || !may_pass(header->error)) return -EINVAL;
  return push_one({.bytes = std::vector<std::byte>(bytes.begin(), bytes.end())});
}

int Notifier::advance_epoch() noexcept { return tell(kNotifyIncEpoch); }

int Notifier::tell(int code) noexcept {
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = code;
  const ssize_t written = ::write(device_.get(), &header, sizeof(header));
  if (written < 0) return -errno;
  sent_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// ENOENT: the kernel does not know that inode or name, so there is nothing to invalidate.
void Notifier::send(const Notification& notification) {
  if (notification.bytes.empty()) return passed_(notification.token);
  const ssize_t written = write_patiently(notification);
  (written >= 0 || errno == ENOENT ? sent_ : failed_).fetch_add(1, std::memory_order_relaxed);
  if (notification.then) notification.then();
}

ssize_t Notifier::write_patiently(const Notification& notification) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const ssize_t written =
        ::write(device_.get(), notification.bytes.data(), notification.bytes.size());
    if (written >= 0 || errno != ENOENT || !notification.patient) return written;
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return stopping_; });
    if (stopping_ || std::chrono::steady_clock::now() > end) {
      errno = ENOENT;
      return -1;
    }
  }
}

void Notifier::run() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (queue_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Notification next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    send(next);
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
}

}  // namespace braidfs::fuse
