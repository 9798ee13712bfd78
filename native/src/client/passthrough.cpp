#include "client/passthrough.h"

namespace braidfs::client {

using fuse::PassthroughChoice;

PassthroughChoice Passthrough::opened(const Opened& opened) {
  const std::scoped_lock lock(mu_);
  const auto known = inodes_.find(opened.file.ino);
  if (known != inodes_.end()) {
    Entry& entry = known->second;
    if (entry.id == 0) return enter(entry, opened);
    if (!opened.is_certain) return {.way = PassthroughChoice::Way::kUpcall};
    if (opened.is_immutable && opened.file.stamp == entry.file.stamp) return enter(entry, opened);
    ++stale_;
    return {.way = PassthroughChoice::Way::kStale};
  }
  Entry entry;
  const bool may_pass =
      opened.is_immutable && opened.is_certain && opened.is_leased && !opened.is_direct;
  if (may_pass && opened.file.stamp != 0 && begin(entry, opened)) note(entry);
  return enter(inodes_[opened.file.ino] = entry, opened);
}

bool Passthrough::begin(Entry& entry, const Opened& opened) {
  const net::UniqueFd file = copies_ != nullptr ? copies_->open(opened.file) : net::UniqueFd();
  if (!file) return false;
  const int id = calls_.open(file.get());
  if (id <= 0) {
    ++failures_;
    copies_->closed(opened.file);
    return false;
  }
  entry.id = static_cast<uint32_t>(id);
  entry.file = opened.file;
  entry.uses_copy = true;
  return true;
}

// Records the backing for the next process.
void Passthrough::note(Entry& entry) {
  entry.noted = record_.put({.fh = entry.file.stamp,
                             .ino = entry.file.ino,
                             .open_flags = entry.id,
                             .kind = OpenRecord::Kind::kBacking});
}

PassthroughChoice Passthrough::enter(Entry& entry, const Opened& opened) {
  if (!handles_.emplace(opened.fh, opened.file.ino).second) return {};
  ++entry.handles;
  if (entry.id == 0) return {};
  ++opens_;
  ++handles_with_backing_;
  return {.way = PassthroughChoice::Way::kPassthrough, .backing = entry.id};
}

void Passthrough::closed(uint64_t fh) {
  const std::scoped_lock lock(mu_);
  const auto handle = handles_.find(fh);
  if (handle == handles_.end()) return;
  const auto known = inodes_.find(handle->second);
  handles_.erase(handle);
  Entry& entry = known->second;
  if (entry.id != 0) --handles_with_backing_;
  if (--entry.handles > 0) return;
  if (entry.id != 0) {
    record_.drop(entry.noted);  // before the close: the record never names an id that is closed
    calls_.close(entry.id);
    if (entry.uses_copy) copies_->closed(entry.file);
  }
  inodes_.erase(known);
}

void Passthrough::adopt(const std::vector<Backing>& backings,
                        const std::vector<std::pair<uint64_t, uint64_t>>& handles) {
  const std::scoped_lock lock(mu_);
  for (const auto& [fh, ino] : handles) {
    if (handles_.emplace(fh, ino).second) ++inodes_[ino].handles;
  }
  for (const Backing& backing : backings) {
    const auto known = inodes_.find(backing.ino);
    if (known == inodes_.end()) {  // its last handle was being closed
      calls_.close(backing.id);
      continue;
    }
    Entry& entry = known->second;
    entry.id = backing.id;
    entry.file = {.ino = backing.ino, .stamp = backing.stamp};
    note(entry);
    handles_with_backing_ += entry.handles;
  }
}

std::vector<Passthrough::Backing> Passthrough::backings() {
  const std::scoped_lock lock(mu_);
  std::vector<Backing> all;
  for (const auto& [ino, entry] : inodes_) {
    if (entry.id != 0) all.push_back({ino, entry.id, entry.file.stamp});
  }
  return all;
}

std::vector<std::pair<std::string, uint64_t>> Passthrough::counters() {
  const std::scoped_lock lock(mu_);
  return {{"passthrough_opens", opens_},
          {"passthrough_handles", handles_with_backing_},
          {"passthrough_stale", stale_},
          {"passthrough_failures", failures_}};
}

}  // namespace braidfs::client
