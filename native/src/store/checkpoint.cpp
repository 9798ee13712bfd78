// Checkpoint: everything in the log is written to record pages and homes, then the log is dropped.
//
// 1. Sync all dirty objects and begin a new log segment. 2. Per object, with writers kept out:
// commit what is left, copy the records, write REDO bytes home. 3. fdatasync. 4. Write the pages,
// each to the place that does not hold the newest good page. 5. fdatasync. 6. Drop the old
// segments.
//
// A power cut at any point leaves either the old page and the log that belongs to it, or the new
// page; recovery skips entries that a page includes already (applied_sequence). Threads: blocking,
// one checkpoint at a time.
#include <algorithm>
#include <set>

#include "store/body.h"
#include "store/fault.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

constexpr size_t kBatchObjects = std::min<size_t>(256, kLockedTogetherMax);

}  // namespace

Status StoreBody::checkpoint() {
  const std::lock_guard turn(checkpoint_mu_);
  checkpoint_wanted_ = false;
  std::vector<ObjectPointer> before = table_.dirty();
  for_batches(before, kBatchObjects, [&](auto some) {
    sync_batch(some);  // an object that fails here fails again below
    table_.trim(some);
  });
  uint64_t number = 0;
  if (Status s = log_->rotate(number); s != Status::kOk) return count_error(s);
  checkpoint_start_ = log_->newest_start();
  std::vector<ObjectPointer> objects = table_.take_dirty();
  Status result = Status::kOk;
  for_batches(objects, kBatchObjects, [&](auto some) {
    const Status s = checkpoint_batch(some);
    if (s != Status::kOk) result = s;
    table_.trim(some);
  });
  if (Status s = sync_unlinked(); s != Status::kOk) result = s;
  fault(FaultPoint::kCheckpointBeforeDrop);
  if (result != Status::kOk) return count_error(result);  // the old segments stay
  if (Status s = log_->drop_before(number); s != Status::kOk) return count_error(s);
  ++checkpoints_;
  const std::lock_guard guard(room_mu_);
  room_.notify_all();
  return Status::kOk;
}

Status StoreBody::checkpoint_batch(std::span<const ObjectPointer> objects) {
  const std::lock_guard closed(gate_);
  std::vector<CheckpointPart> parts;
  Status result = Status::kOk;
  for (const ObjectPointer& object : objects) {
    CheckpointPart part{.object = object, .file = {}, .images = {}};
    const Status s = snapshot(object, part);
    if (s != Status::kOk) result = s;
    if (!part.images.empty()) parts.push_back(std::move(part));
  }
  fault(FaultPoint::kCheckpointAfterRedo);
  Status written = sync_parts(parts);
  fault(FaultPoint::kCheckpointAfterRedoSync);
  if (written == Status::kOk) written = write_images(parts);
  fault(FaultPoint::kCheckpointAfterPages);
  if (written == Status::kOk) written = sync_parts(parts);
  fault(FaultPoint::kCheckpointAfterPageSync);
  for (CheckpointPart& part : parts) finish_part(part, written == Status::kOk);
  return written == Status::kOk ? result : written;
}

// Readers go on. Writers wait for the range lock, but not for long: most of the object was synced
// before.
Status StoreBody::snapshot(const ObjectPointer& object, CheckpointPart& part) {
  Guard guard(object->mu);
  const RangeLock::Ticket ticket = object->range.lock(guard, 0, kBlocksMax, false);
  Status status = Status::kOk;
  if (!object->removed && object->unsynced()) {
    guard.unlock();
    status = sync_batch({&object, 1});
    guard.lock();
  }
  if (!object->removed && status == Status::kOk) status = file_of(*object, part.file);
  if (!object->removed && status == Status::kOk) status = map_pages(object);
  object->dirty = false;
  if (status != Status::kOk) {
    table_.add_dirty(object);
  } else if (!object->removed) {
    for (auto& [index, group] : object->groups) {
      if (!group->dirty) continue;
      make_clean(*group);
      part.images.push_back(image_of(*object, index, group));
    }
    guard.unlock();
    status = write_redo(part);
    guard.lock();
    if (status != Status::kOk) {
      for (PageImage& image : part.images) make_dirty(object, *image.group);
      part.images.clear();
    }
  }
  object->range.unlock(ticket);
  return status;
}

PageImage StoreBody::image_of(const Object& object, uint32_t index,
                              const std::shared_ptr<Group>& group) {
  PageImage image;
  image.group = group;
  image.place = static_cast<uint8_t>(1 - group->place);
  image.redo.assign(group->redo.begin(), group->redo.end());
  RecordPage& page = image.page;
  page.slot = group->slot;
  if (index == 0 && object.mapped) page.flags |= kPageMapped;
  if (group->damaged) page.flags |= kPageLost;
  if (group->children) page.children = *group->children;
  page.log_start = checkpoint_start_;
  page.file_id = object.id.file_id;
  page.stripe_index = object.id.stripe_index;
  page.group = index;
  page.generation = group->generation + 1;
  page.epoch = object.epoch;
  page.object_length = object.length;
  page.applied_sequence = object.last_sequence;
  page.sums = group->sums;
  page.versions = group->versions;
  seal(page);
  return image;
}

Status StoreBody::write_redo(const CheckpointPart& part) {
  for (const PageImage& image : part.images) {
    std::vector<iovec> run;  // blocks that lie side by side
    for (size_t at = 0; at < image.redo.size(); ++at) {
      const auto& [block, redo] = image.redo[at];
      run.push_back({const_cast<std::byte*>(redo->bytes.data()), kBlockSize});
      if (at + 1 < image.redo.size() && image.redo[at + 1].first == block + 1) continue;
      const auto first = static_cast<uint32_t>(block + 1 - run.size());
      const uint64_t home = block_offset(image.page.group, image.page.slot, first);
      if (int r = write_parts(*part.file, run, home); r < 0) return status_of(r);
      run.clear();
    }
  }
  return Status::kOk;
}

Status StoreBody::sync_parts(std::span<const CheckpointPart> parts) {
  if (parts.size() >= kSyncAllMin) return status_of_sync(device_->sync_all());
  for (const CheckpointPart& part : parts) {
    if (Status s = status_of_sync(part.file->sync()); s != Status::kOk) return s;
  }
  return Status::kOk;
}

Status StoreBody::write_images(std::span<const CheckpointPart> parts) {
  for (const CheckpointPart& part : parts) {
    for (const PageImage& image : part.images) {
      const auto raw = std::as_bytes(std::span(&image.page, 1));
      const uint64_t offset = page_offset(image.page.group, image.place);
      if (int r = write_whole(*part.file, raw, offset); r < 0) return status_of(r);
    }
  }
  return Status::kOk;
}

void StoreBody::finish_part(CheckpointPart& part, bool written) {
  const std::lock_guard guard(part.object->mu);
  for (PageImage& image : part.images) {
    if (written) {
      finish_group(*part.object, *part.file, image);
    } else if (!part.object->removed) {
      make_dirty(part.object, *image.group);
    }
  }
}

void StoreBody::finish_group(Object& object, File& file, PageImage& image) {
  Group& group = *image.group;
  if (object.removed) return;
  group.generation = image.page.generation;
  group.place = image.place;
  group.page_sequence = image.page.applied_sequence;
  const auto mark = static_cast<uint8_t>(std::min(group.generation, 2u));
  if (image.page.group == 0 && object.mark < mark && file.set_mark(mark) == 0) object.mark = mark;
  for (const auto& [block, redo] : image.redo) {
    const auto found = group.redo.find(block);
    if (found != group.redo.end() && found->second == redo) group.redo.erase(found);
  }
  if (group.other_blocks == 0 || group.other_busy || group.other_in_flight) return;
  const uint64_t left = block_offset(image.page.group, static_cast<uint8_t>(1 - group.slot), 0);
  if (file.punch(left, kGroupBytes) < 0) return;
  space_.add(-static_cast<int64_t>(uint64_t{group.other_blocks} * kBlockSize));
  group.other_blocks = 0;
}

// Makes unlinks durable. The gate was passed, so every DELETE in the old segments has unlinked its
// name.
Status StoreBody::sync_unlinked() {
  std::unordered_set<std::string> directories;
  {
    const std::lock_guard closed(gate_);
    const std::lock_guard guard(unlinked_mu_);
    directories = std::exchange(unlinked_, {});
  }
  Status result = Status::kOk;
  if (directories.size() >= kSyncAllMin) {
    result = status_of_sync(device_->sync_all());
  } else {
    for (const std::string& directory : directories) {
      const Status s = status_of_sync(device_->sync_directory(directory));
      if (s != Status::kOk) result = s;
    }
  }
  if (result != Status::kOk) {
    const std::lock_guard guard(unlinked_mu_);
    unlinked_.merge(directories);
  }
  return result;
}

}  // namespace braidfs::store
