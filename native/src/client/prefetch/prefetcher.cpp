#include "client/prefetch/prefetcher.h"

#include <algorithm>

#include "client/operation.h"

namespace braidfs::client::prefetch {

void Prefetcher::limit(uint64_t bytes_max, bool fills_pages) noexcept {
  table_.limit(bytes_max);
  whole_small_files_.turn(bytes_max != 0, fills_pages);
}

size_t Prefetcher::under_way() const {
  const std::scoped_lock lock(mu_);
  return table_.under_way();
}

uint64_t Prefetcher::bytes() const {
  const std::scoped_lock lock(mu_);
  return table_.bytes();
}

void Prefetcher::let_go() {
  const std::scoped_lock lock(mu_);
  announced_order_.let_go();
  table_.let_go();
}

bool Prefetcher::expire(Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  bool is_left = table_.expire(now);
  for (Policy* const policy : policies_) is_left |= policy->expire(table_, now);
  // The mutex is held, so whoever adds an entry after this takes the timer again.
  if (!is_left) has_timer_ = false;
  return is_left;
}

void Prefetcher::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const {
  table_.add_counters(all);
  server_caches_.add_counters(all);
}

bool Prefetcher::watches(const CachedExtent& extent, For whom) const noexcept {
  return extent.stamp != 0 && std::ranges::any_of(policies_, [&](const Policy* policy) {
           return policy->watches(extent, whom);
         });
}

Found Prefetcher::read(const Reading& reading, Parts& parts, const Waiter& reader,
                       Extents& wanted) {
  if (!is_on()) return Found::kNo;
  const CachedExtent& extent = reading.extent;
  const std::scoped_lock lock(mu_);
  Extents* const begun = is_paused_ ? nullptr : &wanted;
  const auto found =
      table_.read(extent, parts, reader, reading.only_looks ? nullptr : begun, reading.now);
  Plan plan(table_, extent, begun, reading.now);
  for (Policy* const policy : policies_) {
    if (!reading.only_looks && policy->watches(extent, reading.whom))
      policy->read(plan, reading.whom);
    if (found == Found::kYes) policy->given(extent.ino, table_);
  }
  return found;
}

Waiters Prefetcher::fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  return table_.fetched(extent, std::move(bytes), now);
}

Waiters Prefetcher::missed(uint64_t ino, uint64_t offset) {
  const std::scoped_lock lock(mu_);
  return table_.missed(ino, offset);
}

bool Prefetcher::knows(uint64_t ino) const {
  if (std::ranges::none_of(policies_, [](const Policy* policy) { return policy->any(); }))
    return false;
  const std::scoped_lock lock(mu_);
  return table_.has(ino) ||
         std::ranges::any_of(policies_, [ino](const Policy* policy) { return policy->knows(ino); });
}

void Prefetcher::closed(uint64_t ino, bool is_last) {
  const std::scoped_lock lock(mu_);
  for (Policy* const policy : policies_) policy->closed(ino, is_last, table_);
}

size_t Prefetcher::announce(std::span<const uint64_t> inos, bool replaces) {
  if (!is_on()) return 0;
  const std::scoped_lock lock(mu_);
  return announced_order_.announce(inos, replaces);
}

std::vector<uint64_t> Prefetcher::take_announced(Clock::time_point now) {
  if (is_paused_ || !has_announced()) return {};
  const std::scoped_lock lock(mu_);
  return announced_order_.take(table_, now);
}

}  // namespace braidfs::client::prefetch
