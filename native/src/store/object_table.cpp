#include "store/object_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace braidfs::store {

namespace {
constexpr size_t kDeletedMax = 16384;
constexpr uint64_t kClosedTogether = 16;
constexpr int kEvictTriesMax = 16;  // per lookup, so a full table of held objects costs little
}  // namespace

ObjectPointer ObjectTable::get(ObjectId id) {
  const std::lock_guard guard(mu_);
  if (auto found = objects_.find(id); found != objects_.end()) {
    use(found->second);
    ObjectPointer object = found->second.object;  // held here, so it is not evicted
    // The object may be about to open its file again, or to read record pages.
    if (crowded()) evict_some();
    return object;
  }
  if (crowded()) evict_some();
  recent_.push_front(id);
  Slot slot{std::make_shared<Object>(id), recent_.begin()};
  return objects_.emplace(id, std::move(slot)).first->second.object;
}

void ObjectTable::trim(std::span<ObjectPointer> used) {
  const std::lock_guard guard(mu_);
  for (ObjectPointer& object : used) {
    const auto found = objects_.find(object->id);
    if (found != objects_.end() && found->second.object == object) use(found->second);
    object.reset();
  }
  for (size_t tries = recent_.size(); tries > 0 && crowded();
       tries -= std::min<size_t>(tries, kEvictTriesMax)) {
    evict_some();
  }
}

bool ObjectTable::crowded() const noexcept {
  return objects_.size() >= limits_.objects_max || groups_ >= limits_.groups_max ||
         files_ >= limits_.files_max;
}

void ObjectTable::use(Slot& slot) {
  recent_.splice(recent_.begin(), slot.is_apart ? apart_ : recent_, slot.position);
  slot.is_apart = false;
}

void ObjectTable::evict_some() {
  for (int tries = 0; tries < kEvictTriesMax && crowded() && !recent_.empty(); ++tries) {
    const auto found = objects_.find(recent_.back());
    Slot& slot = found->second;
    switch (try_evict(slot)) {
      case Outcome::kMayGo:
        recent_.pop_back();
        objects_.erase(found);
        break;
      case Outcome::kStripped:
        apart_.splice(apart_.begin(), recent_, slot.position);
        slot.is_apart = true;
        break;
      case Outcome::kBusy:  // it is tried again much later
        use(slot);
        break;
    }
  }
}

// Nobody can begin to hold the object while mu_ is held. A checkpoint that is under way holds it in
// place of the list of dirty objects.
ObjectTable::Outcome ObjectTable::try_evict(const Slot& slot) {
  Object& object = *slot.object;
  const std::unique_lock guard(object.mu, std::try_to_lock);
  if (!guard.owns_lock()) return Outcome::kBusy;
  const bool is_held = slot.object.use_count() > (object.dirty ? 2 : 1);
  if (!is_held && !object.dirty) return Outcome::kMayGo;
  if (!object.range.idle()) return Outcome::kBusy;
  object.file.reset();  // a dirty object keeps its records, but not its descriptors
  object.direct.reset();
  return is_held ? Outcome::kBusy : Outcome::kStripped;  // its holder may open its file again
}

bool ObjectTable::close_files() {
  const std::lock_guard guard(mu_);
  std::unordered_set<const Object*> dirty;
  for (const ObjectPointer& object : dirty_) dirty.insert(object.get());
  const uint64_t before = files_;
  auto position = recent_.end();
  while (position != recent_.begin() && before - files_ < kClosedTogether) {
    const auto found = objects_.find(*--position);
    Slot& slot = found->second;
    if (!is_unused(slot, dirty)) continue;
    const auto behind = std::next(position);
    if (const Outcome outcome = try_evict(slot); outcome == Outcome::kMayGo) {
      recent_.erase(position);
      objects_.erase(found);
      position = behind;
    } else if (outcome == Outcome::kStripped) {
      apart_.splice(apart_.begin(), recent_, slot.position);
      slot.is_apart = true;
      position = behind;
    }
  }
  return files_ < before;
}

// True when only the table holds the object (and the list of dirty ones, when it is dirty): then
// nobody holds its mutex, and this thread does not either.
bool ObjectTable::is_unused(const Slot& slot,
                            const std::unordered_set<const Object*>& dirty) const {
  return slot.object.use_count() == (dirty.contains(slot.object.get()) ? 2 : 1);
}

void ObjectTable::erase(const ObjectPointer& object) {
  const std::lock_guard guard(mu_);
  if (deleted_.insert(object->id).second) deleted_order_.push_back(object->id);
  if (deleted_order_.size() > kDeletedMax) {
    deleted_.erase(deleted_order_.front());
    deleted_order_.pop_front();
  }
  const auto found = objects_.find(object->id);
  if (found == objects_.end() || found->second.object != object) return;
  (found->second.is_apart ? apart_ : recent_).erase(found->second.position);
  objects_.erase(found);
}

bool ObjectTable::deleted_lately(ObjectId id) const {
  const std::lock_guard guard(mu_);
  return deleted_.contains(id);
}

void ObjectTable::add_dirty(const ObjectPointer& object) {
  if (object->dirty) return;
  object->dirty = true;
  const std::lock_guard guard(mu_);
  dirty_.push_back(object);
}

std::vector<ObjectPointer> ObjectTable::dirty() const {
  const std::lock_guard guard(mu_);
  return dirty_;
}

std::vector<ObjectPointer> ObjectTable::take_dirty() {
  const std::lock_guard guard(mu_);
  return std::exchange(dirty_, {});
}

size_t ObjectTable::dirty_count() const {
  const std::lock_guard guard(mu_);
  return dirty_.size();
}

uint64_t ObjectTable::object_count() const {
  const std::lock_guard guard(mu_);
  return objects_.size();
}

}  // namespace braidfs::store
