// Replays the log in two passes: first what was committed and deleted, then the entries themselves.
//
// A group's page is loaded when the first entry names it. Entries that the page includes already
// (applied_sequence) are skipped. An entry that names a newer page generation than the one found
// shows that a good page was lost, and the group is damaged. Pages torn by the power cut are
// expected only where a checkpoint had begun, so that there are two segments: they belong to groups
// that the log names, and the checkpoint that follows writes them again.
//
// Entries may be missing (log.h). Each entry names the one before it of the same object, and syncs
// promised up to where each object was durable. An object whose chain of entries does not reach
// that far has lost something unknown. The whole object is an error from then on, and its page says
// so (kPageLost).
//
// Threads: as recovery.h.
#include "store/recovery.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "braidfs/frame.h"
#include "store/fault.h"

namespace braidfs::store {

Status Recovery::run(std::string& message) {
  body_.recovering_ = true;
  if (Status s = load_log(message); s != Status::kOk) return s;
  body_.torn_expected_ = body_.log_->was_rotating();
  for (const Promise& promise : body_.log_->promises()) learn(promise);
  body_.log_->visit([&](const EntryView& entry) { learn(entry); });
  body_.log_->visit([&](const EntryView& entry) { replay(entry); });
  fault(FaultPoint::kRecoverAfterReplay);
  message = "cannot replay the log";
  if (failure_ != Status::kOk) return failure_;
  if (Status s = check_promises(); s != Status::kOk) return s;
  if (Status s = body_.log_->begin_after_load(); s != Status::kOk) return s;
  std::vector<ObjectPointer> objects;
  for (const auto& [id, object] : objects_) objects.push_back(object);
  message = "cannot sync what was replayed";
  if (Status s = body_.sync_batch(objects); s != Status::kOk) return s;
  message = "cannot finish what was replayed";
  if (Status s = finish_deleted(); s != Status::kOk) return s;
  for (const ObjectPointer& object : objects) {
    if (Status s = finish_object(object); s != Status::kOk) return s;
  }
  message = "cannot checkpoint what was replayed (is the device full?)";
  const Status checkpointed = body_.checkpoint();
  body_.recovering_ = body_.torn_expected_ = false;
  // Dropped entries must leave the log before a later COMMIT of their object could bring them back.
  return dropped_ == 0 && checkpointed == Status::kEnospc ? Status::kOk : checkpointed;
}

Status Recovery::load_log(std::string& message) {
  const LogScan scan = body_.log_->load(same_boot_);
  message = scan.message;
  lossy_ = scan.lossy;
  const bool damaged = scan.status == Status::kCorrupt || scan.lossy;
  const Superblock& stopped = body_.superblock_;
  if (damaged && stopped.clean != 0 && stopped.next_sequence != 0) {
    body_.say(
        30,
        "the log is damaged, and not needed: the target was stopped, and all is in its objects");
    body_.log_->load_nothing(stopped.next_sequence);
    lossy_ = false;
    return Status::kOk;
  }
  if (scan.status == Status::kOk && !message.empty()) body_.say(40, message);
  return scan.status;
}

void Recovery::learn(const Promise& promise) {
  Fate& fate = fates_[{promise.file_id, promise.stripe_index}];
  if (promise.deleted != 0) {
    fate.deleted = std::max(fate.deleted, promise.sequence);
    return;
  }
  fate.promised = std::max(fate.promised, promise.sequence);
  fate.committed = std::max(fate.committed, promise.sequence);
}

void Recovery::learn(const EntryView& entry) {
  Fate& fate = fates_[{entry.header.file_id, entry.header.stripe_index}];
  if (entry.header.kind == EntryKind::kCommit) {
    fate.committed = std::max(fate.committed, entry.header.value);
    fate.promised = std::max(fate.promised, entry.header.value);
  }
  if (entry.header.kind == EntryKind::kDelete)
    fate.deleted = std::max(fate.deleted, entry.header.sequence);
  if (entry.header.kind == EntryKind::kTruncate) {
    const uint64_t first = (entry.header.value + kBlockSize - 1) / kBlockSize;
    fate.truncations.push_back({first, kBlocksMax, entry.header.sequence});
  }
}

// True when a later truncation removes the whole group. Its page may have left the file, so neither
// its generation nor its records count.
bool Recovery::cut_off_later(ObjectId id, uint32_t group, uint64_t sequence) const {
  const Fate& fate = fates_.at(id);
  return std::any_of(fate.truncations.begin(), fate.truncations.end(), [&](const Punched& cut) {
    return cut.sequence > sequence && (same_boot_ || cut.sequence <= fate.committed) &&
           group != 0 && cut.first <= uint64_t{group} * kGroupBlocks;
  });
}

void Recovery::replay(const EntryView& entry) {
  const EntryHeader& header = entry.header;
  const Fate& fate = fates_[{header.file_id, header.stripe_index}];
  if (header.kind == EntryKind::kCommit || header.sequence <= fate.deleted) return;
  if (!same_boot_ && header.sequence > fate.committed) {
    ++dropped_;
    return;
  }
  ObjectPointer object;
  const bool may_be_new = header.kind == EntryKind::kTruncate;
  const Status opened = object_for({header.file_id, header.stripe_index}, fate, may_be_new, object);
  if (opened != Status::kOk)
    failure_ = opened;
  else
    apply(object, entry);
}

Status Recovery::object_for(ObjectId id, const Fate& fate, bool may_be_new, ObjectPointer& object) {
  ObjectPointer& known = objects_[id];
  if (!known) {
    known = body_.table_.get(id);
    known->floor_sequence = fate.deleted;
    const std::lock_guard guard(known->mu);
    const Status opened = body_.open_object(*known, Wait::kYes);
    if (opened != Status::kOk && opened != Status::kCorrupt) return opened;
    if (!known->exists) {
      if (!may_be_new)
        body_.say(40, "the file of " + object_path(id) + " is missing: its bytes are lost");
      if (Status s = body_.create_object(*known); s != Status::kOk) return s;
    }
  }
  object = known;
  return Status::kOk;
}

// Marks the object as damaged: entries up to `sequence` are missing. The caller holds object->mu.
void Recovery::mark_lost(const ObjectPointer& object, uint64_t sequence) {
  Group& zero = *object->groups.at(0);
  body_.make_dirty(object, zero);  // its page must say so
  object->last_sequence = std::max(object->last_sequence, sequence);
  if (object->damaged) return;
  object->damaged = zero.damaged = true;
  body_.say(40, object_path(object->id) + " is damaged: log entries about it, up to " +
                    std::to_string(sequence) +
                    ", are missing; it cannot be read any more, write or restore its file anew");
}

// Finds the objects whose entries do not reach what syncs promised.
Status Recovery::check_promises() {
  for (const auto& [id, fate] : fates_) {
    if (fate.promised <= fate.deleted) continue;
    ObjectPointer object;
    if (Status s = object_for(id, fate, false, object); s != Status::kOk) return s;
    const std::lock_guard guard(object->mu);
    if (object->last_sequence < fate.promised) mark_lost(object, fate.promised);
  }
  return Status::kOk;
}

void Recovery::apply(const ObjectPointer& object, const EntryView& entry) {
  const std::lock_guard guard(object->mu);
  const uint32_t distance = entry.header.distance;
  const bool names_one = distance != 0 && distance != UINT32_MAX;
  if (names_one && entry.header.sequence - distance > object->last_sequence)
    mark_lost(object, entry.header.sequence - distance);
  apply_header(object, entry.header);
  apply_cut(object, entry.header);
  apply_runs(object, entry);
  const Fate& fate = fates_[object->id];
  object->last_sequence = std::max(object->last_sequence, entry.header.sequence);
  object->committed_sequence =
      same_boot_
          ? std::max(object->committed_sequence, std::min(fate.committed, object->last_sequence))
          : object->last_sequence;
  object->bytes_unsynced = object->name_unsynced = true;
}

void Recovery::apply_header(const ObjectPointer& object, const EntryHeader& header) {
  Group& zero = *object->groups.at(0);
  if (header.base_generation > zero.generation && !object->damaged) {
    object->damaged = zero.damaged = true;
    body_.say(40, "the record page of " + object_path(object->id) + " group 0 is damaged");
  }
  body_.make_dirty(object, zero);
  if (header.sequence <= zero.page_sequence) return;
  object->length = header.object_length;
  object->epoch = header.epoch;
}

void Recovery::apply_cut(const ObjectPointer& object, const EntryHeader& header) {
  if (header.kind != EntryKind::kTruncate && header.kind != EntryKind::kPunch) return;
  Punched cut{header.value, std::min(header.value_end, kBlocksMax), header.sequence};
  if (header.kind == EntryKind::kTruncate) {
    cut = {(header.value + kBlockSize - 1) / kBlockSize, kBlocksMax, header.sequence};
  }
  std::vector<GroupPiece> pieces;
  if (header.kind == EntryKind::kPunch) {
    pieces = pieces_of(cut.first, cut.end);
  } else if (cut.first % kGroupBlocks != 0) {
    pieces = pieces_of(cut.first, cut.first + 1);
  }
  if (header.kind == EntryKind::kTruncate && object->mapped) {
    const auto index =
        std::max(static_cast<uint32_t>((cut.first + kGroupBlocks - 1) / kGroupBlocks), 1u);
    for (const uint32_t parent : ancestors_of(index)) {
      if (parent < index) pieces.push_back({.index = parent, .group = nullptr});
    }
  }
  std::erase_if(pieces, [&](const GroupPiece& piece) {
    return cut_off_later(object->id, piece.index, header.sequence);
  });
  // before the cut is in the list, because loading applies the list
  for (GroupPiece& piece : pieces) {
    const Status s = body_.load_group(*object, piece.index, Wait::kYes, piece.group);
    if (s != Status::kOk) failure_ = s;
  }
  object->cuts.push_back(cut);
  object->punched.push_back(cut);
  for (auto& [index, group] : object->groups) {
    body_.apply_cut_to(cut, index, *group);
    const uint64_t base = uint64_t{index} * kGroupBlocks;
    if ((base < cut.end && cut.first < base + kGroupBlocks) || group->children)
      body_.make_dirty(object, *group);
  }
}

void Recovery::apply_runs(const ObjectPointer& object, const EntryView& entry) {
  size_t sum = 0;
  size_t byte = 0;
  for (const EntryRun& run : entry.runs) {
    const size_t bytes = (run.flags & kRunRedo) != 0 ? size_t{run.count} * kBlockSize : 0;
    apply_run(object, run, entry.header.sequence, entry.sums.subspan(sum, run.count),
              entry.bytes.subspan(byte, bytes), entry.whole);
    sum += run.count;
    byte += bytes;
  }
}

void Recovery::apply_run(const ObjectPointer& object, const EntryRun& run, uint64_t sequence,
                         std::span<const uint64_t> sums, std::span<const std::byte> bytes,
                         bool whole) {
  if (cut_off_later(object->id, run.group, sequence)) return;
  std::shared_ptr<Group> group;
  const Status loaded = body_.load_group(*object, run.group, Wait::kYes, group);
  if (loaded != Status::kOk) {
    failure_ = loaded;
    return;
  }
  if (run.base_generation > group->generation && !group->damaged) {
    group->damaged = true;
    body_.say(40, "a record page of " + object_path(object->id) + " is damaged: group " +
                      std::to_string(run.group));
  }
  body_.make_dirty(object, *group);
  if (sequence <= group->page_sequence) return;
  if ((run.flags & kRunSwitch) != 0) body_.switch_slot(*object, run, sequence, *group);
  for (uint32_t i = 0; i < run.count; ++i) {
    const uint32_t block = uint32_t{run.first} + i;
    group->set(block, sums[i]);
    group->occupied.set(block);
    group->redo.erase(block);
    if (bytes.empty()) continue;
    const auto content = bytes.subspan(size_t{i} * kBlockSize, kBlockSize);
    // The block's home holds other bytes; the record's sum will show that.
    if (!whole && xxh3(content) != sums[i]) {
      body_.say(40, object_path(object->id) + " has lost the block at " +
                        std::to_string((uint64_t{run.group} * kGroupBlocks + block) * kBlockSize) +
                        ": its bytes in the log are damaged");
      continue;
    }
    auto redo = std::make_shared<RedoBlock>(body_.redo_bytes_);
    std::memcpy(redo->bytes.data(), content.data(), kBlockSize);
    group->redo[block] = std::move(redo);
  }
}

// Unlinks deleted objects again: the DELETE was logged, but its unlink may not have reached the
// device.
Status Recovery::finish_deleted() {
  for (const auto& [id, fate] : fates_) {
    if (fate.deleted == 0 || objects_.contains(id)) continue;
    const int r = body_.device_->unlink(object_path(id));
    if (r < 0 && r != -ENOENT) return Status::kEio;
    const std::lock_guard guard(body_.unlinked_mu_);
    body_.unlinked_.insert(object_directory(id));
  }
  return Status::kOk;
}

// The truncations are committed now: what no later entry wrote again is removed from the file.
Status Recovery::finish_object(const ObjectPointer& object) {
  const std::lock_guard guard(object->mu);
  body_.free_committed(*object);
  uint64_t first_block = kBlocksMax;
  for (const Punched& cut : object->cuts) {
    if (cut.end == kBlocksMax) first_block = std::min(first_block, cut.first);
  }
  object->cuts.clear();
  object->floor_sequence = 0;
  for (auto& [index, group] : object->groups) group->finished.reset();
  return first_block == kBlocksMax ? Status::kOk : drop_tail(*object, first_block);
}

// Removes whole groups behind a truncation that no entry touched: their pages must not come back.
Status Recovery::drop_tail(Object& object, uint64_t first_block) {
  std::shared_ptr<File> file;
  FileFigures figures;
  if (Status s = body_.file_of(object, file); s != Status::kOk) return s;
  if (file->figures(figures) < 0) return Status::kEio;
  std::vector<uint32_t> kept;
  for (const auto& [index, group] : object.groups) kept.push_back(index);
  kept.push_back(kGroupCountMax);
  std::sort(kept.begin(), kept.end());
  auto from = static_cast<uint32_t>((first_block + kGroupBlocks - 1) / kGroupBlocks);
  from = std::max(from, 1u);
  for (const uint32_t next : kept) {
    for (uint8_t place = 0; place < 2 && from < next; ++place) {
      const uint64_t start = page_offset(from, place);
      const uint64_t end = std::min(page_offset(next, place), figures.size);
      if (start < end && file->punch(start, end - start) < 0) return Status::kEio;
    }
    from = std::max(from, next + 1);
  }
  return Status::kOk;
}

}  // namespace braidfs::store
