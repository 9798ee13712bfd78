#include "fuse/notifier.h"

#include <cerrno>
#include <chrono>
#include <climits>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

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

void Notifier::start(net::UniqueFd device) {
  device_ = std::move(device);
  stopping_ = false;
  ended_ = false;
  thread_ = std::thread([this] { run(); });
}

bool Notifier::stop_within(int wait_ms) {
  std::unique_lock lock(mu_);
  stopping_ = true;
  queue_.clear();
  changed_.notify_all();
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return ended_; });
}

void Notifier::stop() {
  if (!thread_.joinable()) return;
  stop_within(0);
  thread_.join();
  device_.reset();
}

int Notifier::push(Bytes notification) {
  const std::scoped_lock lock(mu_);
  if (stopping_) return 0;
  if (queue_.size() >= kQueueMax) return -EAGAIN;
  queue_.push_back(std::move(notification));
  changed_.notify_all();
  return 0;
}

int Notifier::invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length) {
  const fuse_notify_inval_inode_out body{nodeid, offset, length};
  return push(notification(FUSE_NOTIFY_INVAL_INODE, body, {}, false));
}

int Notifier::invalidate_entry(uint64_t parent, std::string_view name) {
  if (name.empty() || name.size() > NAME_MAX) return -EINVAL;
  const fuse_notify_inval_entry_out body{parent, static_cast<uint32_t>(name.size()), 0};
  return push(notification(FUSE_NOTIFY_INVAL_ENTRY, body, name, true));
}

int Notifier::forward(std::span<const std::byte> bytes) {
  const auto header = load<fuse_out_header>(bytes);
  if (!header || bytes.size() > kBytesMax || !may_pass(header->error)) return -EINVAL;
  return push(Bytes(bytes.begin(), bytes.end()));
}

void Notifier::run() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (queue_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Bytes next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const ssize_t written = ::write(device_.get(), next.data(), next.size());
    // ENOENT: the kernel does not know that inode or name, so there is nothing to invalidate.
    (written >= 0 || errno == ENOENT ? sent_ : failed_).fetch_add(1, std::memory_order_relaxed);
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
}

}  // namespace braidfs::fuse
