#include "fuse/complete_table.h"

#include "braidfs/frame.h"

namespace braidfs::fuse {

namespace {

uint64_t hash_of(std::string_view name) noexcept {
  return xxh3(std::as_bytes(std::span(name.data(), name.size())));
}

}  // namespace

void CompleteTable::put(uint64_t ino, Clock::time_point until) {
  const std::scoped_lock lock(mu_);
  if (directories_.size() < kDirectoriesMax) directories_[ino].until = until;
}

void CompleteTable::extend(uint64_t ino, Clock::time_point until) {
  const std::scoped_lock lock(mu_);
  const auto found = directories_.find(ino);
  if (found != directories_.end()) found->second.until = until;
}

void CompleteTable::add(uint64_t ino, std::string_view name) {
  const std::scoped_lock lock(mu_);
  const auto found = directories_.find(ino);
  if (found == directories_.end()) return;
  name_count_ += found->second.names.insert(hash_of(name)).second;
  if (name_count_ <= kNamesMax) return;
  name_count_ -= found->second.names.size();
  directories_.erase(found);
}

void CompleteTable::drop(uint64_t ino) {
  const std::scoped_lock lock(mu_);
  const auto found = directories_.find(ino);
  if (found == directories_.end()) return;
  name_count_ -= found->second.names.size();
  directories_.erase(found);
}

void CompleteTable::clear() {
  const std::scoped_lock lock(mu_);
  directories_.clear();
  name_count_ = 0;
}

bool CompleteTable::is_absent(uint64_t ino, std::string_view name, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  const auto found = directories_.find(ino);
  if (found == directories_.end() || found->second.until <= now) return false;
  return !found->second.names.contains(hash_of(name));
}

}  // namespace braidfs::fuse
