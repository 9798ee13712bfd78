// SYNC of one object or many, STAT and DELETE.
//
// A sync captures the object's last entry, calls fdatasync on the bytes, then logs a COMMIT up to
// that entry and calls fdatasync on the log. Writes go on meanwhile: they never touch a place that
// the captured entries name (object.h), so what is committed is what is on the device.
#include <algorithm>
#include <set>

#include "store/body.h"
#include "store/fault.h"

namespace braidfs::store {

struct StoreBody::Flush {
  ObjectPointer object;
  std::unique_lock<std::mutex> turn;  // the object's sync_mu
  std::shared_ptr<File> file;
  uint64_t up_to = 0;
  bool bytes = false;
  bool name = false;
};

Status StoreBody::sync(ObjectId id, uint32_t epoch) {
  const ObjectPointer object = table_.get(id);
  {
    const std::lock_guard guard(object->mu);
    if (object->removed) return Status::kOk;
    if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
    if (epoch < object->epoch) return Status::kStaleTruncateEpoch;
  }
  return sync_batch({&object, 1});
}

// Captures what is to be synced. up_to stays 0 when there is nothing to do. The caller holds
// sync_mu.
Status StoreBody::capture(Flush& flush) {
  Object& object = *flush.object;
  const std::lock_guard guard(object.mu);
  if (object.broken) return Status::kEio;
  if (object.removed || !object.unsynced()) return Status::kOk;
  if (Status s = file_of(object, flush.file); s != Status::kOk) return s;
  flush.up_to = object.last_sequence;
  flush.bytes = std::exchange(object.bytes_unsynced, false);
  flush.name = std::exchange(object.name_unsynced, false);
  return Status::kOk;
}

Status StoreBody::flush_bytes(std::span<Flush> flushes) {
  fault(FaultPoint::kSyncBeforeBytes);
  if (flushes.size() >= kSyncAllMin) return status_of_sync(device_->sync_all());
  std::set<std::string> directories;
  for (const Flush& flush : flushes) {
    if (flush.bytes || flush.name) {
      if (Status s = status_of_sync(flush.file->sync()); s != Status::kOk) return s;
    }
    if (flush.name) directories.insert(object_directory(flush.object->id));
  }
  for (const std::string& directory : directories) {
    if (Status s = status_of_sync(device_->sync_directory(directory)); s != Status::kOk) return s;
  }
  return Status::kOk;
}

Status StoreBody::status_of_sync(int result) noexcept {
  return result < 0 ? count_error(Status::kEio) : Status::kOk;
}

Status StoreBody::commit(std::span<Flush> flushes) {
  fault(FaultPoint::kSyncAfterBytes);
  uint64_t sequence = 0;
  for (const Flush& flush : flushes) {
    EntryHeader header;
    {
      const std::lock_guard guard(flush.object->mu);
      if (flush.object->removed) continue;  // its records are gone, and it needs none
      header = header_for(*flush.object, EntryKind::kCommit);
    }
    header.value = flush.up_to;
    if (Status s = log_->append(header, {}, {}, {}, sequence); s != Status::kOk) return s;
  }
  if (Status s = log_->sync(sequence); s != Status::kOk) return count_error(s);
  fault(FaultPoint::kSyncAfterCommit);
  for (const Flush& flush : flushes) {
    Object& object = *flush.object;
    const std::lock_guard guard(object.mu);
    object.committed_sequence = std::max(object.committed_sequence, flush.up_to);
    if (object.unsynced()) object.unsynced_since = Clock::now();
    if (!object.removed) free_committed(object);
  }
  return Status::kOk;
}

Status StoreBody::sync_batch(std::span<const ObjectPointer> objects) {
  std::unique_lock<std::mutex> several(batch_mu_, std::defer_lock);
  if (objects.size() > 1) several.lock();
  // Ordered by id: everybody takes several sync_mu in the same order.
  std::vector<ObjectPointer> ordered(objects.begin(), objects.end());
  std::ranges::sort(ordered, {}, [](const ObjectPointer& object) { return object->id; });
  std::vector<Flush> flushes;
  flushes.reserve(ordered.size());
  Status result = Status::kOk;
  for (const ObjectPointer& object : ordered) {
    Flush flush{.object = object, .turn = std::unique_lock(object->sync_mu), .file = {}};
    const Status captured = capture(flush);
    if (captured != Status::kOk) result = captured;
    if (flush.up_to != 0) flushes.push_back(std::move(flush));
  }
  if (flushes.empty()) return result;
  const Status flushed = flush_bytes(flushes);
  const Status committed = flushed == Status::kOk ? commit(flushes) : flushed;
  if (committed == Status::kOk) return result;
  for (const Flush& flush : flushes) {
    const std::lock_guard guard(flush.object->mu);
    flush.object->bytes_unsynced |= flush.bytes;
    flush.object->name_unsynced |= flush.name;
    // The kernel drops dirty pages whose write failed, so a later fdatasync would report success
    // wrongly.
    if (flushed == Status::kOk) continue;
    flush.object->broken = true;
    say(40, "fdatasync failed: " + object_path(flush.object->id) +
                " takes no writes until a restart; what was not synced may be lost");
  }
  return committed;
}

Status StoreBody::sync_older_than(Clock::duration age) {
  std::vector<ObjectPointer> old;
  const auto now = Clock::now();
  for (const ObjectPointer& object : table_.dirty()) {
    const std::lock_guard guard(object->mu);
    if (object->unsynced() && now - object->unsynced_since >= age && !object->removed)
      old.push_back(object);
  }
  Status result = Status::kOk;
  for_batches(old, kLockedTogetherMax, [&](auto some) {
    const Status s = sync_batch(some);
    if (s != Status::kOk) result = s;
    table_.trim(some);
  });
  return result;
}

// Frees what a commit made free: homes of punched blocks, and slots that were left. The caller
// holds Object::mu.
void StoreBody::free_committed(Object& object) {
  std::erase_if(object.switched, [&](uint32_t index) {
    const auto found = object.groups.find(index);
    if (found == object.groups.end()) return true;
    if (found->second->switch_sequence > object.committed_sequence) return false;
    found->second->other_busy = false;
    return true;
  });
  std::erase_if(object.punched, [&](const Punched& punched) {
    return punched.sequence <= object.committed_sequence && release_punched(object, punched);
  });
}

bool StoreBody::release_punched(Object& object, const Punched& punched) {
  fault(FaultPoint::kPunchBeforeRelease);
  std::shared_ptr<File> file;
  if (file_of(object, file) != Status::kOk) return true;
  for (auto& [index, group] : object.groups) {
    const uint64_t base = uint64_t{index} * kGroupBlocks;
    uint32_t at =
        static_cast<uint32_t>(std::clamp(punched.first, base, base + kGroupBlocks) - base);
    const auto end =
        static_cast<uint32_t>(std::clamp(punched.end, base, base + kGroupBlocks) - base);
    const Group& held = *group;  // clang 14 cannot capture a structured binding
    const auto releasable = [&held](uint32_t i) { return held.hole(i) && held.occupied[i]; };
    while (at < end) {
      if (!releasable(at)) {
        ++at;
        continue;
      }
      uint32_t stop = at;
      while (stop < end && releasable(stop)) ++stop;
      const uint64_t length = uint64_t{stop - at} * kBlockSize;
      if (file->punch(block_offset(index, group->slot, at), length) < 0) return false;
      for (uint32_t i = at; i < stop; ++i) group->occupied.reset(i);
      space_.add(-static_cast<int64_t>(length));
      at = stop;
    }
  }
  return true;
}

Status StoreBody::stat(ObjectId id, ObjectFigures& figures) {
  const ObjectPointer object = table_.get(id);
  const std::lock_guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  if (!object->exists) return Status::kNoObject;
  std::shared_ptr<File> file;
  if (Status s = file_of(*object, file); s != Status::kOk) return s;
  FileFigures on_device;
  if (int r = file->figures(on_device); r < 0) return count_error(Status::kEio);
  figures = {object->length, on_device.allocated, object->epoch};
  return Status::kOk;
}

// One object of a removal. Nobody else reads or writes the object meanwhile.
struct StoreBody::Removal {
  size_t index = 0;  // position in the caller's list
  ObjectPointer object;
  RangeLock::Ticket ticket = 0;
  uint64_t sequence = 0;  // of the entry; 0: there is no object
  Status status = Status::kOk;
};

void StoreBody::remove_all(std::span<const ObjectId> ids, std::span<Status> statuses) {
  const std::shared_lock passage(gate_);
  std::vector<Removal> begun;
  begun.reserve(ids.size());
  std::vector<size_t> busy;
  for (size_t index = 0; index < ids.size(); ++index) {
    Removal removal{.index = index, .object = table_.get(ids[index])};
    if (begin_removal(removal, Wait::kNo))
      begun.push_back(std::move(removal));
    else
      busy.push_back(index);
  }
  end_removals(begun, statuses);
  for (const size_t index : busy) {  // no other object is held, so nobody waits in a circle
    begun.clear();
    begun.push_back({.index = index, .object = table_.get(ids[index])});
    (void)begin_removal(begun.front(), Wait::kYes);
    end_removals(begun, statuses);
  }
}

// False: the object is in use, and the caller does not want to wait. Of an object that is not in
// memory, nothing is read except whether it exists, so a damaged object can be deleted as well.
bool StoreBody::begin_removal(Removal& removal, Wait wait) {
  Object& object = *removal.object;
  Guard guard(object.mu);
  if (object.removed) return true;
  if (!object.loaded) {
    std::shared_ptr<File> file;
    const Status opened = file_of(object, file);
    object.exists = opened == Status::kOk;
    if (opened != Status::kOk && opened != Status::kNoObject) {
      removal.status = opened;
      return true;
    }
  }
  removal.ticket = wait == Wait::kNo ? object.range.try_lock(0, kBlocksMax, true)
                                     : object.range.lock(guard, 0, kBlocksMax, true);
  if (removal.ticket == 0) return false;
  if ((!object.exists && !object.leftover) || object.removed) return true;
  removal.status =
      log_->append(header_for(object, EntryKind::kDelete), {}, {}, {}, removal.sequence);
  fault(FaultPoint::kRemoveAfterLog);
  return true;
}

// One flush of the log makes all entries durable.
void StoreBody::end_removals(std::span<Removal> begun, std::span<Status> statuses) {
  uint64_t newest = 0;
  for (const Removal& removal : begun) newest = std::max(newest, removal.sequence);
  const Status synced = newest != 0 ? log_->sync(newest) : Status::kOk;
  for (Removal& removal : begun) {
    Status status = removal.status;
    if (status == Status::kOk && removal.sequence != 0) status = synced;
    {
      const std::lock_guard guard(removal.object->mu);
      if (status == Status::kOk) status = mark_removed(removal.object);
      if (removal.ticket != 0) removal.object->range.unlock(removal.ticket);
    }
    if (status == Status::kOk) table_.erase(removal.object);
    statuses[removal.index] = count_error(status);
  }
}

// The entry is durable. The name is unlinked now, and the unlink is durable before the log drops
// the entry.
Status StoreBody::mark_removed(const ObjectPointer& object) {
  if (object->removed) return Status::kOk;
  object->removed = true;
  for (auto& [index, group] : object->groups) make_clean(*group);
  if (!object->exists && !object->leftover) return Status::kOk;
  std::shared_ptr<File> file;
  FileFigures figures;
  if (file_of(*object, file) == Status::kOk && file->figures(figures) == 0)
    space_.add(-static_cast<int64_t>(figures.allocated));
  {
    const std::lock_guard guard(unlinked_mu_);
    unlinked_.insert(object_directory(object->id));
  }
  const int r = device_->unlink(object_path(object->id));
  fault(FaultPoint::kRemoveAfterUnlink);
  --objects_;
  object->exists = object->leftover = false;
  // The list of dirty objects may hold the object until the next checkpoint; its space and its
  // records are freed now.
  object->file.reset();
  object->direct.reset();
  object->groups.clear();
  return r < 0 && r != -ENOENT ? Status::kEio : Status::kOk;
}

}  // namespace braidfs::store
