#include "fuse/slot_table.h"

namespace braidfs::fuse {

namespace {

constexpr uint32_t kGenerationMask = (1u << 15) - 1;

}  // namespace

std::optional<uint32_t> SlotTable::put(const Upcall& upcall) {
  const std::scoped_lock lock(mu_);
  if (free_.empty() && places_.size() == kSlotsMax) return std::nullopt;
  if (index_of_.contains(upcall.unique)) return std::nullopt;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(places_.size()));
    places_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  places_[index].upcall = upcall;
  places_[index].used = true;
  index_of_.emplace(upcall.unique, index);
  return slot_at(index);
}

std::optional<Upcall> SlotTable::find(uint32_t slot) const {
  const std::scoped_lock lock(mu_);
  const uint32_t index = slot & (kSlotsMax - 1);
  if (index >= places_.size() || !places_[index].used || slot_at(index) != slot)
    return std::nullopt;
  return places_[index].upcall;
}

std::optional<uint32_t> SlotTable::slot_of(uint64_t unique) const {
  const std::scoped_lock lock(mu_);
  const auto found = index_of_.find(unique);
  if (found == index_of_.end()) return std::nullopt;
  return slot_at(found->second);
}

Upcall SlotTable::release(uint32_t index) {
  Place& place = places_[index];
  place.used = false;
  place.generation = (place.generation + 1) & kGenerationMask;
  free_.push_back(index);
  return place.upcall;
}

std::optional<Upcall> SlotTable::take(uint64_t unique) {
  const std::scoped_lock lock(mu_);
  const auto found = index_of_.find(unique);
  if (found == index_of_.end()) return std::nullopt;
  const uint32_t index = found->second;
  index_of_.erase(found);
  return release(index);
}

std::vector<Upcall> SlotTable::take_all() {
  const std::scoped_lock lock(mu_);
  std::vector<Upcall> all;
  all.reserve(index_of_.size());
  for (const auto& [unique, index] : index_of_) all.push_back(release(index));
  index_of_.clear();
  return all;
}

size_t SlotTable::count() const {
  const std::scoped_lock lock(mu_);
  return index_of_.size();
}

}  // namespace braidfs::fuse
