#include "client/prefetch/announced_order.h"

#include <algorithm>

namespace braidfs::client::prefetch {

size_t AnnouncedOrder::announce(std::span<const uint64_t> inos, bool replaces) {
  if (replaces) wanted_.clear();
  const size_t count = std::min(inos.size(), kWantedMax - wanted_.size());
  wanted_.insert(wanted_.end(), inos.begin(), inos.begin() + static_cast<ptrdiff_t>(count));
  note_waiting();
  return count;
}

std::vector<uint64_t> AnnouncedOrder::take(Table& table, Clock::time_point now) {
  std::vector<uint64_t> taken;
  if (share_.under_way() + kBatch > kUnderWayMax) return taken;
  while (taken.size() < kBatch && !wanted_.empty()) {
    const uint64_t ino = wanted_.front();
    if (!table.has(ino)) {
      if (!table.begin_file(share_, ino, kSmallFileMax, kReserve, now)) break;
      places_[ino] = next_place_;
      order_.emplace_back(next_place_++, ino);
      taken.push_back(ino);
    }
    wanted_.pop_front();
  }
  note_waiting();
  return taken;
}

void AnnouncedOrder::let_go() {
  wanted_.clear();
  note_waiting();
}

void AnnouncedOrder::given(uint64_t ino, Table& table) {
  const auto known = places_.find(ino);
  if (known != places_.end()) drop_behind(known->second, table);
}

void AnnouncedOrder::closed(uint64_t ino, bool /*is_last*/, Table& table) {
  const auto known = places_.find(ino);
  if (known == places_.end() || !table.has(ino) || table.is_under_way(ino)) return;
  table.drop(share_, ino);
  drop_behind(known->second, table);
}

bool AnnouncedOrder::expire(Table& table, Clock::time_point /*now*/) {
  drop_behind(0, table);
  return !order_.empty();
}

// The program is at place `turn`. Drops the files far before it, from the beginning of the order
// on, unread.
void AnnouncedOrder::drop_behind(uint64_t turn, Table& table) {
  while (!order_.empty()) {
    const auto [place, ino] = order_.front();
    const auto known = places_.find(ino);
    const bool is_known = known != places_.end() && known->second == place;
    if (is_known && table.has(ino)) {
      if (table.is_under_way(ino) || place + kBehindMax >= turn) return;
      table.drop(share_, ino);
    }
    if (is_known) places_.erase(known);
    order_.pop_front();
  }
}

}  // namespace braidfs::client::prefetch
