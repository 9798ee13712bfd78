#include "server/fetcher.h"

#include "core/yield.h"
#include "server/threads.h"
#include "store/device.h"

namespace braidfs::server {

size_t Fetcher::Hash::operator()(const Key& key) const noexcept {
  uint64_t mixed = key.first.file_id * 0x9e37'79b9'7f4a'7c15u + key.first.stripe_index;
  mixed = (mixed ^ mixed >> 32) + key.second;
  return static_cast<size_t>(mixed * 0xd6e8'feb8'6659'fd93u);
}

Fetcher::Fetcher(const TargetTable& targets, uint64_t unread_bytes_max)
    : targets_(targets), unread_bytes_max_(unread_bytes_max) {
  if (unread_bytes_max > 0) thread_ = std::thread([this] { run(); });
}

void Fetcher::stop() {
  {
    const std::scoped_lock lock(mu_);
    stopping_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Fetcher::has_room(uint32_t length) const {
  return !stopping_ && queue_.size() < kQueueMax && unread_.size() < kUnreadMax &&
         unread_bytes_ + length <= unread_bytes_max_;
}

bool Fetcher::want(std::span<const Wanted> wanted, Clock::time_point now) {
  bool is_taken = true;
  {
    const std::scoped_lock lock(mu_);
    expire(now);
    for (const Wanted& one : wanted) {
      const Key key{one.object, one.target};
      if (places_.contains(key)) continue;
      is_taken = has_room(one.length);
      if (!is_taken) break;
      places_.emplace(key, unread_.insert(unread_.end(), Unread{key, one.length, now}));
      unread_bytes_ += one.length;
      queue_.insert(key);
    }
    unread_count_.store(unread_.size(), std::memory_order_relaxed);
    if (!is_taken) ++counts_.refused;
  }
  work_.notify_one();
  return is_taken;
}

void Fetcher::drop(Place unread) {
  queue_.erase(unread->key);
  unread_bytes_ -= unread->length;
  places_.erase(unread->key);
  unread_.erase(unread);
  unread_count_.store(unread_.size(), std::memory_order_relaxed);
}

void Fetcher::forget(const Key& key) {
  const std::scoped_lock lock(mu_);
  const auto found = places_.find(key);
  if (found == places_.end()) return;
  if (!queue_.contains(key)) ++counts_.used;
  drop(found->second);
}

void Fetcher::expire(Clock::time_point now) {
  while (!unread_.empty() && now - unread_.front().since >= kUnreadFor) {
    ++counts_.unused;
    drop(unread_.begin());
  }
}

Fetcher::Counts Fetcher::counts() const {
  const std::scoped_lock lock(mu_);
  return counts_;
}

std::pair<Fetcher::Key, uint32_t> Fetcher::take_next() {
  auto next = queue_.upper_bound(cursor_);
  if (next == queue_.end()) next = queue_.begin();
  cursor_ = *next;
  queue_.erase(next);
  const uint32_t length = places_.at(cursor_)->length;
  ++counts_.objects;
  counts_.bytes += length;
  return {cursor_, length};
}

void Fetcher::run() {
  begin_thread("braid-fetch");
  yield_to_waker();
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (queue_.empty()) {
      lock.unlock();
      under_way_.clear();
      under_way_bytes_ = 0;
      lock.lock();
      work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      continue;
    }
    const auto [key, length] = take_next();
    lock.unlock();
    fetch(key, length);
    lock.lock();
  }
}

// Begins to fetch an object. While too much is under way, waits for what was begun first.
void Fetcher::fetch(const Key& key, uint32_t length) {
  store::ChunkStore* const store = targets_.find(key.second);
  store::Fetching what;
  if (store == nullptr || store->fetch(key.first, length, what) != Status::kOk) return;
  under_way_bytes_ += length;
  under_way_.push_back({std::move(what), length});
  while (under_way_bytes_ > kUnderWayMax * targets_.count()) {
    const UnderWay& first = under_way_.front();
    std::byte last{};
    const iovec place{&last, 1};
    (void)first.what.file->readv({&place, 1}, first.what.last, false);
    under_way_bytes_ -= first.length;
    under_way_.pop_front();
  }
}

}  // namespace braidfs::server
