#include "names/change_journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace braidfs::names {

record::Record new_file_record(const Birth& birth) noexcept {
  record::Record made{};
  record::set_field(made, record::kIno, birth.ino);
  for (const size_t at : {record::kAtime, record::kMtime, record::kCtime, record::kBtime}) {
    record::set_field(made, at, birth.time_ns);
  }
  record::set_field(made, record::kMode, static_cast<uint32_t>(S_IFREG | birth.mode));
  record::set_field(made, record::kNlink, uint32_t{1});
  record::set_field(made, record::kUid, birth.uid);
  record::set_field(made, record::kGid, birth.gid);
  record::set_field(made, record::kDataVersion, uint64_t{1});
  record::set_field(made, record::kChangeVersion, uint64_t{1});
  return made;
}

bool ChangeJournal::slots_put(uint64_t pool, std::vector<BirthSlot> slots) {
  if (slots.empty()) return true;
  const std::scoped_lock lock(mu_);
  if (slot_count_ + slots.size() > kSlotsMax) return false;
  if (pools_.size() == kPoolsMax && !pools_.contains(pool)) return false;
  slot_count_ += slots.size();
  std::move(slots.begin(), slots.end(), std::back_inserter(pools_[pool]));
  return true;
}

void ChangeJournal::slots_clear() {
  const std::scoped_lock lock(mu_);
  pools_.clear();
  slot_count_ = 0;
}

std::vector<uint64_t> ChangeJournal::slots_drop(uint64_t pool, size_t kept) {
  std::vector<uint64_t> dropped;
  const std::scoped_lock lock(mu_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return dropped;
  auto& slots = found->second;
  for (; slots.size() > kept; slots.pop_back()) dropped.push_back(slots.back().ino);
  slot_count_ -= dropped.size();
  if (slots.empty()) pools_.erase(found);
  return dropped;
}

size_t ChangeJournal::slots(uint64_t pool) const {
  const std::scoped_lock lock(mu_);
  const auto found = pools_.find(pool);
  return found == pools_.end() ? 0 : found->second.size();
}

void ChangeJournal::pool_put(uint64_t directory, uint64_t pool) {
  const std::scoped_lock lock(mu_);
  if (pool == kDefaultPool) {
    pool_of_.erase(directory);
  } else {
    pool_of_[directory] = pool;
  }
}

void ChangeJournal::refuse(std::vector<uint32_t> uids, std::vector<uint32_t> gids) {
  std::sort(uids.begin(), uids.end());
  std::sort(gids.begin(), gids.end());
  const std::scoped_lock lock(mu_);
  refused_uids_ = std::move(uids);
  refused_gids_ = std::move(gids);
}

bool ChangeJournal::refuses(uint32_t uid, uint32_t gid) const {
  const std::scoped_lock lock(mu_);
  return std::binary_search(refused_uids_.begin(), refused_uids_.end(), uid) ||
         std::binary_search(refused_gids_.begin(), refused_gids_.end(), gid);
}

void ChangeJournal::share(uint64_t directory, uint64_t files, uint64_t size_limit) {
  const std::scoped_lock lock(mu_);
  Share& share = shares_[directory];
  share.files += files;
  share.size_limit = size_limit;
}

void ChangeJournal::unshare(uint64_t directory) {
  const std::scoped_lock lock(mu_);
  shares_.erase(directory);
}

std::optional<BirthSlot> ChangeJournal::take_slot(uint64_t directory, uint32_t xattr_count) {
  const std::scoped_lock lock(mu_);
  const auto own = pool_of_.find(directory);
  if (xattr_count != (own == pool_of_.end() ? 0 : 1)) return std::nullopt;
  const auto pool = pools_.find(own == pool_of_.end() ? kDefaultPool : own->second);
  if (pool == pools_.end()) return std::nullopt;
  const auto share = shares_.find(directory);
  if (share != shares_.end() && share->second.files == 0) return std::nullopt;
  std::optional<BirthSlot> slot(std::move(pool->second.front()));
  pool->second.pop_front();
  --slot_count_;
  if (pool->second.empty()) pools_.erase(pool);
  if (share != shares_.end()) {
    --share->second.files;
    slot->size_limit = share->second.size_limit;
  }
  return slot;
}

bool ChangeJournal::push(Change change) {
  const std::array counts{&count_, &removal_count_, &setting_count_, &move_count_};
  counts[change.index()]->fetch_add(1, std::memory_order_relaxed);
  const std::scoped_lock lock(mu_);
  changes_.push_back(std::move(change));
  return changes_.size() == 1;
}

std::vector<Change> ChangeJournal::take() {
  const std::scoped_lock lock(mu_);
  return std::exchange(changes_, {});
}

void ChangeJournal::put_back(std::vector<Change> changes) {
  const std::scoped_lock lock(mu_);
  std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
  changes_ = std::move(changes);
}

bool ChangeJournal::any() const {
  const std::scoped_lock lock(mu_);
  return !changes_.empty();
}

bool ChangeJournal::take_room() noexcept {
  if (unreported_.fetch_add(1) < kUnreportedMax) return true;
  --unreported_;
  return false;
}

void ChangeJournal::changes_reported(size_t count) noexcept {
  size_t unreported = unreported_.load();
  while (!unreported_.compare_exchange_weak(unreported, unreported - std::min(count, unreported))) {
  }
}

}  // namespace braidfs::names
