#include "fuse/notifier.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
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

// The queue of a notification that is no mark. One with a name begins with the parent.
uint32_t queue_of(const Notification& notification) {
  const std::span<const std::byte> bytes(notification.bytes);
  const auto body = bytes.subspan(std::min(bytes.size(), sizeof(fuse_out_header)));
  const auto header = load<fuse_out_header>(bytes);
  if (!header || header->error != FUSE_NOTIFY_INVAL_INODE) {
    return names_queue(load<uint64_t>(body).value_or(0));
  }
  const auto inode = load<fuse_notify_inval_inode_out>(body);
  return inode && inode->off < 0 ? kAttributesQueue : kPagesQueue;
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
  running_ = queues_.size();
  for (Queue& queue : queues_) queue.thread = std::thread([this, &queue] { run(queue); });
}

bool Notifier::stop_within(int wait_ms) {
  std::vector<Notification> dropped;
  std::unique_lock lock(mu_);
  stopping_ = true;
  for (Queue& queue : queues_) {
    std::ranges::move(queue.ready, std::back_inserter(dropped));
    queue.ready.clear();
    for (auto& [due, waiting] : queue.later) dropped.push_back(std::move(waiting));
    queue.later.clear();
    queue.changed.notify_all();
  }
  lock.unlock();
  for (Notification& waiting : dropped) conclude(waiting);
  lock.lock();
  return ended_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                         [this] { return running_ == 0; });
}

void Notifier::stop() {
  if (!queues_.front().thread.joinable()) return;
  stop_within(0);
  for (Queue& queue : queues_) queue.thread.join();
  device_.reset();
}

int Notifier::push_one(Notification notification) {
  std::unique_lock lock(mu_);
  if (stopping_) {
    lock.unlock();
    conclude(notification);
    return 0;
  }
  if (queues_[queue_of(notification)].ready.size() >= kQueueMax) return -EAGAIN;
  put(std::move(notification));
  return 0;
}

// A mark also counts the patient notifications before it.
void Notifier::push(std::vector<Notification> batch) {
  std::shared_ptr<Mark> mark;
  for (auto at = batch.rbegin(); at != batch.rend(); ++at) {
    Notification& each = *at;
    if (each.bytes.empty()) {
      mark = std::make_shared<Mark>(each.token, static_cast<uint32_t>(std::popcount(each.queues)));
      each.mark = mark;
    } else if (each.patient && mark) {
      ++mark->left;
      each.mark = mark;
    }
  }
  {
    const std::scoped_lock lock(mu_);
    if (!stopping_) {
      for (Notification& each : batch) put(std::move(each));
      return;
    }
  }
  for (Notification& each : batch) {
    const int parts = each.bytes.empty() ? std::popcount(each.queues) : 1;
    for (int part = 0; part < parts; ++part) conclude(each);
  }
}

// mu_ is held, here and in the other put().
void Notifier::put(Notification notification) {
  if (!notification.bytes.empty()) {
    const uint32_t queue = queue_of(notification);  // arguments are evaluated in any order
    return put(queue, std::move(notification));
  }
  for (uint32_t queue = 0; queue < kQueueCount; ++queue) {
    if ((notification.queues >> queue & 1) != 0) put(queue, notification);
  }
}

void Notifier::put(uint32_t index, Notification notification) {
  Queue& queue = queues_[index];
  if (notification.not_before > Clock::now()) {
    const auto due = notification.not_before;
    queue.later.emplace(due, std::move(notification));
  } else {
    queue.ready.push_back(std::move(notification));
  }
  queue.changed.notify_all();
}

// The notification is done, as far as its mark counts it.
void Notifier::counted(Notification& notification) {
  if (notification.mark && --notification.mark->left == 0) passed_(notification.mark->token);
}

void Notifier::conclude(Notification& notification) {
  counted(notification);
  if (notification.then) notification.then();
}

int Notifier::invalidate_inode(uint64_t nodeid, int64_t offset, int64_t length,
                               std::function<void()> then) {
  Notification made = Notification::of_inode(nodeid, offset, length);
  made.then = std::move(then);
  return push_one(std::move(made));
}

int Notifier::forward(std::span<const std::byte> bytes) {
  const auto header = load<fuse_out_header>(bytes);
  if (!header || bytes.size() > kBytesMax || !may_pass(header->error)) return -EINVAL;
  return push_one({.bytes = std::vector<std::byte>(bytes.begin(), bytes.end())});
}

int Notifier::resend() noexcept {
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = kNotifyResend;
  const ssize_t written = ::write(device_.get(), &header, sizeof(header));
  if (written < 0) return -errno;
  sent_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

// ENOENT: the kernel does not know that inode or name, so there is nothing to invalidate.
void Notifier::send(Queue& queue, Notification next) {
  if (!next.bytes.empty()) {
    const ssize_t written = ::write(device_.get(), next.bytes.data(), next.bytes.size());
    const bool is_unknown = written < 0 && errno == ENOENT;
    if (is_unknown && next.patient && is_tried_again(queue, next)) return;
    (written >= 0 || is_unknown ? sent_ : failed_).fetch_add(1, std::memory_order_relaxed);
  }
  conclude(next);
}

// Tries are further and further apart. The mark waits for it no longer than kPatience.
bool Notifier::is_tried_again(Queue& queue, Notification& next) {
  const auto now = Clock::now();
  if (next.since == Clock::time_point{}) next.since = now;
  const auto waited = now - next.since;
  if (waited > kTries) return false;
  if (waited > kPatience) {
    counted(next);
    next.mark.reset();
  }
  next.not_before = now + std::max<Clock::duration>(std::chrono::milliseconds(1), waited / 2);
  const std::scoped_lock lock(mu_);
  if (stopping_) return false;
  const auto due = next.not_before;
  queue.later.emplace(due, std::move(next));
  return true;
}

void Notifier::run(Queue& queue) {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    while (!queue.later.empty() && queue.later.begin()->first <= Clock::now()) {
      queue.ready.push_back(std::move(queue.later.begin()->second));
      queue.later.erase(queue.later.begin());
    }
    if (queue.ready.empty()) {
      if (queue.later.empty()) {
        queue.changed.wait(lock);
      } else {
        const auto due =
            queue.later.begin()->first;  // a copy: stop_within() clears the queue meanwhile
        queue.changed.wait_until(lock, due);
      }
      continue;
    }
    Notification next = std::move(queue.ready.front());
    queue.ready.pop_front();
    lock.unlock();
    send(queue, std::move(next));
    lock.lock();
  }
  if (--running_ == 0) ended_.notify_all();
}

}  // namespace braidfs::fuse
