#include "client/prefetch/table.h"

#include <algorithm>

#include "client/operation.h"

namespace braidfs::client::prefetch {

size_t Table::under_way() const noexcept {
  size_t count = 0;
  for (const Share& share : shares_) count += share.under_way_;
  return count;
}

void Table::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const {
  const auto add = [&](const Share& share, const char* what, const auto& count) {
    all.emplace_back(std::string(share.terms().name) + what, count.load(std::memory_order_relaxed));
  };
  for (const Share& share : shares_) {
    add(share, "_reads", share.reads_);
    add(share, "_unused", share.unused_);
    add(share, "_missed", share.missed_);
  }
}

// ---- looking up entries ----

// The first entry that ends behind that offset.
Table::Entries::const_iterator Table::over(const File& file, uint64_t offset) {
  const auto entry = file.entries.upper_bound(offset);
  if (entry == file.entries.begin()) return entry;
  const auto before = std::prev(entry);
  return before->first + before->second.length > offset ? before : entry;
}

Table::Entries::iterator Table::over(File& file, uint64_t offset) {
  const auto entry = over(std::as_const(file), offset);
  return file.entries.erase(entry, entry);  // erases nothing: a mutable iterator to the same place
}

std::optional<Table::Cover> Table::next(uint64_t ino, uint64_t offset) const {
  const auto file = files_.find(ino);
  if (file == files_.end()) return std::nullopt;
  const auto entry = over(file->second, offset);
  if (entry == file->second.entries.end()) return std::nullopt;
  return Cover{entry->first, entry->first + entry->second.length};
}

bool Table::is_under_way(uint64_t ino) const {
  const auto file = files_.find(ino);
  if (file == files_.end()) return false;
  const auto entry = file->second.entries.find(0);
  return entry != file->second.entries.end() && entry->second.under_way;
}

// ---- entries begin ----

bool Table::has_room(const Share& share, uint32_t charge, Priority priority) const noexcept {
  const uint64_t bytes_max = bytes_max_;
  if (bytes_ + charge > bytes_max) return false;
  return priority == Priority::kNear ||
         share.bytes_ + charge <= bytes_max * share.terms_.far_eighths / 8;
}

// Makes room by dropping entries that are too old, if that is necessary. It must not be called
// while the caller uses a File.
void Table::make_room(uint64_t bytes, Clock::time_point now) {
  if (bytes_ + bytes > bytes_max_) expire(now);
}

bool Table::add(Share& share, File& file, uint64_t offset, Entry entry, Priority priority) {
  if (!has_room(share, entry.charge, priority)) return false;
  entry.share = &share;
  bytes_ += entry.charge;
  share.bytes_ += entry.charge;
  ++share.under_way_;
  share.entries_.fetch_add(1, std::memory_order_relaxed);
  file.entries.try_emplace(offset, std::move(entry));
  return true;
}

bool Table::begin_in(Share& share, File& file, const Want& want, Extents& extents) {
  for (uint64_t at = want.begin; at < want.end;) {
    const auto next = over(std::as_const(file), at);
    const bool is_last = next == file.entries.end();
    if (!is_last && next->first <= at) {
      at = next->first + next->second.length;
      continue;
    }
    const uint64_t to = is_last ? want.end : std::min(want.end, next->first);
    const auto length = static_cast<uint32_t>(to - at);
    const uint32_t given = at == want.begin ? want.given : 0;
    const Entry entry{.length = length, .charge = Memory::size_for(length), .given = given};
    if (!add(share, file, at, entry, want.priority)) return false;
    extents.push_back({at, length});
    at = to;
  }
  return true;
}

bool Table::begin(Share& share, const Want& want, Extents& extents, Clock::time_point now) {
  make_room(want.end - want.begin, now);
  const auto file = files_.try_emplace(want.ino).first;
  const bool is_all = begin_in(share, file->second, want, extents);
  forget_if_empty(file);
  return is_all;
}

bool Table::begin_file(Share& share, uint64_t ino, uint32_t size_max, uint32_t reserve,
                       Clock::time_point now) {
  make_room(reserve, now);
  const auto file = files_.try_emplace(ino).first;
  const bool is_begun =
      add(share, file->second, 0, {.length = size_max, .charge = reserve}, Priority::kFar);
  forget_if_empty(file);
  return is_begun;
}

// ---- entries get their bytes ----

Table::Entry* Table::under_way_at(const CachedExtent& extent) {
  const auto file = files_.find(extent.ino);
  if (file == files_.end()) return nullptr;
  const auto entry = file->second.entries.find(extent.offset);
  if (entry == file->second.entries.end() || !entry->second.under_way) return nullptr;
  return &entry->second;
}

Waiters Table::fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now) {
  Entry* const entry = under_way_at(extent);
  if (entry == nullptr) return {};
  Share& share = *entry->share;
  --share.under_way_;
  entry->under_way = false;
  entry->stamp = extent.stamp;
  entry->file_size = extent.file_size;
  entry->length = extent.length;
  recharge(*entry, Memory::size_for(extent.length));
  entry->age = share.ages_.insert(share.ages_.end(), {extent.ino, extent.offset, now});
  bytes.move_to(Buffer::Account::kAnnounced);
  entry->bytes = std::make_shared<Buffer>(std::move(bytes));
  return std::exchange(entry->waiters, {});
}

Waiters Table::missed(uint64_t ino, uint64_t offset) {
  Entry* const entry = under_way_at({.ino = ino, .offset = offset});
  if (entry == nullptr) return {};
  entry->share->missed_.fetch_add(1, std::memory_order_relaxed);
  Waiters waiters = std::move(entry->waiters);
  const auto file = files_.find(ino);
  erase(file->second, file->second.entries.find(offset));
  forget_if_empty(file);
  return waiters;
}

void Table::recharge(Entry& entry, uint32_t bytes) noexcept {
  bytes_ += bytes;
  entry.share->bytes_ += bytes;
  bytes_ -= entry.charge;
  entry.share->bytes_ -= std::exchange(entry.charge, bytes);
}

// ---- READs ----

Found Table::read(const CachedExtent& extent, Parts& parts, const Waiter& reader, Extents* missing,
                  Clock::time_point now) {
  if (missing != nullptr) make_room(extent.length, now);
  const auto at = files_.find(extent.ino);
  if (at == files_.end()) return Found::kNo;
  File& file = at->second;
  drop_other_versions(file, extent);
  const auto first = over(file, extent.offset);
  auto found = Found::kNo;
  if (first != file.entries.end() && first->first < extent.end()) {
    Share& share = *first->second.share;
    const Want want{.begin = extent.offset, .end = extent.end()};
    if (missing == nullptr || begin_in(share, file, want, *missing))
      found = cover(file, extent, reader);
    if (found == Found::kYes) share.reads_.fetch_add(1, std::memory_order_relaxed);
  }
  if (found != Found::kWait) give(file, extent, found == Found::kYes ? &parts : nullptr);
  forget_if_empty(at);
  return found;
}

void Table::drop_other_versions(File& file, const CachedExtent& extent) {
  auto entry = over(file, extent.offset);
  while (entry != file.entries.end() && entry->first < extent.end()) {
    const bool stays = entry->second.under_way || entry->second.is_of(extent);
    entry = stays ? std::next(entry) : drop(file, entry);
  }
}

// Whether all of the extent is here, or under way.
Found Table::cover(File& file, const CachedExtent& extent, const Waiter& reader) {
  const auto first = over(file, extent.offset);
  auto entry = first;
  for (uint64_t at = extent.offset; at < extent.end(); ++entry) {
    if (entry == file.entries.end() || entry->first > at) return Found::kNo;
    at = entry->first + entry->second.length;
  }
  const auto waits = std::find_if(first, entry, [](auto& one) { return one.second.under_way; });
  if (waits == entry) return Found::kYes;
  waits->second.waiters.push_back(reader);
  return Found::kWait;
}

// Gives the bytes of that extent that are here. Without `parts` the reader has got them in another
// way.
void Table::give(File& file, const CachedExtent& extent, Parts* parts) {
  auto entry = over(file, extent.offset);
  while (entry != file.entries.end() && entry->first < extent.end()) {
    if (entry->second.under_way) {
      ++entry;
    } else {
      give_of(file, entry, extent, parts);
    }
  }
  trim_rests(file);
}

// Gives the bytes of one entry. `at` moves to the next entry.
void Table::give_of(File& file, Entries::iterator& at, const CachedExtent& extent, Parts* parts) {
  Entry& entry = at->second;
  const uint64_t from = std::max(extent.offset, at->first);
  const uint64_t to = std::min(extent.end(), at->first + entry.length);
  const auto length = static_cast<uint32_t>(to - from);
  if (parts != nullptr)
    parts->push_back({entry.bytes, static_cast<uint32_t>(from - at->first), length});
  const bool was_rest = entry.is_rest();
  entry.given += length;
  const bool is_whole_file = at->first == 0 && entry.length == entry.file_size;
  if (entry.given >= entry.length || (is_whole_file && to == entry.file_size)) {
    at = erase(file, at);
    return;
  }
  if (entry.is_rest() && !was_rest) file.rests.push_back(at->first);
  ++at;
}

void Table::trim_rests(File& file) {
  while (file.rests.size() > kRestsMax) {
    const auto rest = file.entries.find(file.rests.front());
    file.rests.pop_front();
    if (rest != file.entries.end() && !rest->second.under_way && rest->second.is_rest())
      drop(file, rest);
  }
}

// ---- entries go ----

Table::Entries::iterator Table::erase(File& file, Entries::iterator at) {
  Entry& entry = at->second;
  recharge(entry, 0);
  if (entry.under_way) {
    --entry.share->under_way_;
  } else {
    entry.share->ages_.erase(entry.age);
  }
  entry.share->entries_.fetch_sub(1, std::memory_order_relaxed);
  return file.entries.erase(at);
}

Table::Entries::iterator Table::drop(File& file, Entries::iterator entry) {
  entry->second.share->unused_.fetch_add(1, std::memory_order_relaxed);
  return erase(file, entry);
}

void Table::drop_idle(File& file, const Share* share) {
  for (auto entry = file.entries.begin(); entry != file.entries.end();) {
    const bool is_of = share == nullptr || entry->second.share == share;
    entry = entry->second.under_way || !is_of ? std::next(entry) : drop(file, entry);
  }
}

void Table::forget_if_empty(Files::iterator file) {
  if (file->second.entries.empty()) files_.erase(file);
}

void Table::drop(const Share& share, uint64_t ino) {
  const auto file = files_.find(ino);
  if (file == files_.end()) return;
  drop_idle(file->second, &share);
  forget_if_empty(file);
}

void Table::let_go() {
  for (auto file = files_.begin(); file != files_.end();) {
    const auto next = std::next(file);
    drop_idle(file->second);
    forget_if_empty(file);
    file = next;
  }
}

bool Table::expire(Clock::time_point now) {
  for (Share& share : shares_) {
    while (!share.ages_.empty() && now - share.ages_.front().since >= share.terms_.lifetime) {
      const Share::Age age = share.ages_.front();
      const auto file = files_.find(age.ino);
      drop(file->second, file->second.entries.find(age.offset));
      forget_if_empty(file);
    }
  }
  return !files_.empty();
}

}  // namespace braidfs::client::prefetch
