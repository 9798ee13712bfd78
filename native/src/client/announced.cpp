#include "client/announced.h"

#include <algorithm>
#include <cstring>

#include "client/operation.h"

namespace braidfs::client {

size_t Announced::want(std::span<const uint64_t> inos, bool replaces) {
  if (bytes_max_ == 0) return 0;
  const std::scoped_lock lock(mu_);
  if (replaces) wanted_.clear();
  const size_t count = std::min(inos.size(), kWantedMax - wanted_.size());
  wanted_.insert(wanted_.end(), inos.begin(), inos.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

bool Announced::has_room() const noexcept {
  return bytes_ + (under_way_ + 1) * kReserve <= bytes_max_;
}

std::vector<uint64_t> Announced::take(Clock::time_point now) {
  std::vector<uint64_t> taken;
  const std::scoped_lock lock(mu_);
  if (!wanted_.empty()) {
    drop_first_while([&](const File& file) { return !has_room() && now - file.since >= kKeptFor; });
  }
  if (paused_ || under_way_ + kBatch > kUnderWayMax) return taken;
  while (taken.size() < kBatch && !wanted_.empty() && has_room()) {
    const uint64_t ino = wanted_.front();
    wanted_.pop_front();
    const auto [file, is_new] = files_.try_emplace(ino);
    if (!is_new) continue;
    file->second.place = next_place_;
    order_.emplace_back(next_place_++, ino);
    ++under_way_;
    taken.push_back(ino);
  }
  count_.store(files_.size(), std::memory_order_relaxed);
  return taken;
}

Announced::Waiters Announced::fetched(uint64_t ino, uint64_t stamp, uint32_t size, Buffer bytes) {
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(ino);
  if (found == files_.end() || !found->second.under_way) return {};
  File& file = found->second;
  --under_way_;
  file.under_way = false;
  file.stamp = stamp;
  file.size = size;
  file.since = Clock::now();
  bytes.move_to(Buffer::Account::kAnnounced);
  file.bytes = std::move(bytes);
  bytes_ += file.bytes.span().size();
  return std::exchange(file.waiters, {});
}

Announced::Waiters Announced::missed(uint64_t ino) {
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(ino);
  if (found == files_.end() || !found->second.under_way) return {};
  --under_way_;
  missed_.fetch_add(1, std::memory_order_relaxed);
  Waiters waiters = std::move(found->second.waiters);
  drop(found);
  return waiters;
}

Announced::Found Announced::read(const CachedExtent& extent, Buffer& place,
                                 const std::shared_ptr<Operation>& reader) {
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(extent.ino);
  if (found == files_.end()) return Found::kNo;
  File& file = found->second;
  if (file.under_way) {
    file.waiters.push_back(reader);
    return Found::kWait;
  }
  const uint64_t end = extent.offset + extent.length;
  if (file.stamp != extent.stamp || file.size != extent.file_size || end > file.size) {
    unused_.fetch_add(1, std::memory_order_relaxed);
    drop(found);
    return Found::kNo;
  }
  reads_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t turn = file.place;
  if (extent.offset == 0 && end == file.size) {
    bytes_ -= file.bytes.span().size();
    place = std::move(file.bytes);
    place.move_to(Buffer::Account::kRead);
  } else {
    std::memcpy(place.span().data(), file.bytes.span().data() + extent.offset, extent.length);
  }
  if (end == file.size) drop(found);
  drop_behind(turn);
  return Found::kYes;
}

void Announced::closed(uint64_t ino) {
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(ino);
  if (found == files_.end() || found->second.under_way) return;
  unused_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t turn = found->second.place;
  drop(found);
  drop_behind(turn);
}

bool Announced::expire(Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  drop_first_while([&](const File& file) { return now - file.since >= kKeptFor; });
  return !order_.empty();
}

void Announced::let_go() {
  const std::scoped_lock lock(mu_);
  wanted_.clear();
  for (auto file = files_.begin(); file != files_.end();) {
    const auto next = std::next(file);
    if (!file->second.under_way) drop(file);
    file = next;
  }
}

void Announced::drop(Files::iterator file) {
  if (file->second.bytes) bytes_ -= file->second.bytes.span().size();
  files_.erase(file);
  count_.store(files_.size(), std::memory_order_relaxed);
}

// Of the order, from its beginning: unread.
template <typename MayGo>
void Announced::drop_first_while(MayGo may_go) {
  while (!order_.empty()) {
    const auto [place, ino] = order_.front();
    const auto file = files_.find(ino);
    if (file != files_.end() && file->second.place == place) {
      if (file->second.under_way || !may_go(file->second)) return;
      unused_.fetch_add(1, std::memory_order_relaxed);
      drop(file);
    }
    order_.pop_front();
  }
}

void Announced::drop_behind(uint64_t turn) {
  drop_first_while([&](const File& first) { return first.place + kBehindMax < turn; });
}

void Announced::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const {
  all.emplace_back("announced_reads", reads_.load(std::memory_order_relaxed));
  all.emplace_back("announced_unused", unused_.load(std::memory_order_relaxed));
  all.emplace_back("announced_missed", missed_.load(std::memory_order_relaxed));
}

}  // namespace braidfs::client
