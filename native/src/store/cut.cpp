// TRUNCATE and PUNCH: blocks become holes, and partial blocks get zeros through the log. Also the
// creation of an object that holds nothing yet, which is a TRUNCATE to nothing of an object that
// does not exist, and RAISE_EPOCH, which is a TRUNCATE to the length that the object has.
//
// TRUNCATE keeps the whole object locked until its entry is committed and the tail of the file is
// gone, so that nobody can load a record page that was cut off. PUNCH leaves the homes occupied
// until a later sync commits it (durable.cpp, free_committed).
#include <algorithm>
#include <cstring>

#include "braidfs/frame.h"
#include "store/body.h"
#include "store/fault.h"

namespace braidfs::store {

namespace {

// At least one: group 0 holds length and epoch.
constexpr uint32_t groups_kept(uint64_t length) noexcept {
  return std::max(static_cast<uint32_t>((length + kGroupBytes - 1) / kGroupBytes), 1u);
}

}  // namespace

Status StoreBody::make(ObjectId id, uint32_t epoch, bool must_exist) {
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  if (Status s = admit(*object, epoch); s != Status::kOk) return s;
  if (object->exists) return Status::kOk;
  return must_exist ? Status::kNoObject : count_error(make_locked(object, epoch));
}

// The log entry keeps the object, although it is empty, when the host is lost after a sync.
Status StoreBody::make_locked(const ObjectPointer& object, uint32_t epoch) {
  if (!space_.admits_object()) return Status::kEnospc;
  if (Status s = create_object(*object); s != Status::kOk) return s;
  EntryHeader header = header_for(*object, EntryKind::kTruncate);
  header.epoch = epoch;
  if (Status s = log_cut(object, header, {}); s != Status::kOk) return s;
  object->epoch = epoch;
  return Status::kOk;
}

Status StoreBody::truncate(ObjectId id, uint64_t length, uint32_t epoch, bool must_exist) {
  if (length > kObjectBytesMax) return Status::kEfbig;
  const std::shared_lock passage(gate_);
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  const RangeLock::Ticket ticket = object->range.lock(guard, 0, kBlocksMax, true);
  Status status = admit(*object, epoch);
  if (status == Status::kOk && must_exist && !object->exists) status = Status::kNoObject;
  const bool is_repeated = object->exists && epoch == object->epoch;
  // a repetition of that truncation, or one that is long outdated
  if (status == Status::kOk && is_repeated) {
    status = length == object->length ? Status::kOk : Status::kStaleTruncateEpoch;
    guard.unlock();
    if (status == Status::kOk) status = sync_batch({&object, 1});
    guard.lock();
  } else if (status == Status::kOk) {
    status = truncate_locked(object, guard, length, epoch);
  }
  object->range.unlock(ticket);
  return count_error(status);
}

// The lock waits for writes under way, which were admitted under the epoch of before.
Status StoreBody::raise_epoch(ObjectId id, uint32_t epoch, bool must_exist) {
  const std::shared_lock passage(gate_);
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  const RangeLock::Ticket ticket = object->range.lock(guard, 0, kBlocksMax, true);
  Status status = admit(*object, std::max(epoch, object->epoch));
  if (status == Status::kOk && must_exist && !object->exists) status = Status::kNoObject;
  if (status == Status::kOk && object->exists && epoch <= object->epoch) {
    guard.unlock();
    status = sync_batch({&object, 1});  // it may not be durable yet
    guard.lock();
  } else if (status == Status::kOk) {
    status = truncate_locked(object, guard, object->length, epoch);
  }
  object->range.unlock(ticket);
  return count_error(status);
}

Status StoreBody::truncate_locked(const ObjectPointer& object, Guard& guard, uint64_t length,
                                  uint32_t epoch) {
  if (!object->exists) {
    if (!space_.admits_object()) return Status::kEnospc;
    if (Status s = create_object(*object); s != Status::kOk) return s;
  }
  const bool shrinks = length < object->length;
  Edges edges;
  if (shrinks && length % kBlockSize != 0) {
    Status s = zero_edge(*object, guard, length, round_up_to_block(length), edges);
    if (s != Status::kOk) return s;
  }
  EntryHeader header = header_for(*object, EntryKind::kTruncate);
  header.epoch = std::max(object->epoch, epoch);
  header.value = header.object_length = length;
  if (shrinks) {  // loaded before the entry is written: afterwards nothing may fail
    std::vector<GroupPiece> boundary = pieces_of(length / kBlockSize, length / kBlockSize + 1);
    if (Status s = load_pieces(*object, boundary, Wait::kYes); s != Status::kOk) return s;
    if (Status s = load_ancestors(*object, groups_kept(length)); s != Status::kOk) return s;
  }
  if (Status s = log_cut(object, header, edges); s != Status::kOk) return s;
  if (shrinks) {
    Status s = cut_groups(object, round_up_to_block(length) / kBlockSize, kBlocksMax);
    if (s != Status::kOk) return s;
  }
  object->length = length;
  object->epoch = header.epoch;
  fault(FaultPoint::kTruncateAfterLog);
  guard.unlock();
  const Status synced = sync_batch({&object, 1});
  fault(FaultPoint::kTruncateAfterSync);
  guard.lock();
  if (synced != Status::kOk || !shrinks) return synced;
  const Status released = release_tail(*object, length);
  if (released != Status::kOk) object->broken = true;
  return released;
}

// Appends the entry and applies its edges. The caller holds Object::mu.
Status StoreBody::log_cut(const ObjectPointer& object, EntryHeader header, const Edges& edges) {
  std::vector<iovec> bytes;
  for (const auto& redo : edges.redo) bytes.push_back({redo->bytes.data(), kBlockSize});
  uint64_t sequence = object->last_sequence;
  table_.add_dirty(object);
  if (Status s = log_->append(header, edges.runs, edges.sums, bytes, sequence); s != Status::kOk)
    return s;
  for (size_t i = 0; i < edges.runs.size(); ++i) {
    Group& group = *object->groups.at(edges.runs[i].group);
    group.set(edges.runs[i].first, edges.sums[i]);
    group.redo[edges.runs[i].first] = edges.redo[i];
    make_dirty(object, group);
  }
  changed(object, sequence);
  return Status::kOk;
}

// Zeroes the object's bytes [from, to) within one block. The caller holds the block's range lock
// and the mutex.
Status StoreBody::zero_edge(Object& object, Guard& guard, uint64_t from, uint64_t to,
                            Edges& edges) {
  const uint64_t block = from / kBlockSize;
  std::vector<GroupPiece> pieces = pieces_of(block, block + 1);
  if (Status s = load_pieces(object, pieces, Wait::kYes); s != Status::kOk) return s;
  const GroupPiece& piece = pieces[0];
  const BlockView view = view_of(*piece.group, piece.index, piece.first);
  if (view.hole) return Status::kOk;
  std::shared_ptr<File> file;
  if (Status s = file_of(object, file); s != Status::kOk) return s;
  auto redo = std::make_shared<RedoBlock>(redo_bytes_);
  guard.unlock();
  const Status status = read_block(object, file, block, view, redo->bytes, Wait::kYes);
  guard.lock();
  if (status != Status::kOk) return status;
  std::memset(redo->bytes.data() + from % kBlockSize, 0, to - from);
  edges.runs.push_back({.group = piece.index,
                        .first = static_cast<uint16_t>(piece.first),
                        .count = 1,
                        .flags = kRunRedo,
                        .slot = piece.group->slot,
                        .base_generation = piece.group->generation});
  edges.sums.push_back(xxh3(redo->bytes));
  edges.redo.push_back(std::move(redo));
  return Status::kOk;
}

// Makes the records of blocks [first_block, end_block) holes; their homes stay occupied.
Status StoreBody::cut_groups(const ObjectPointer& object, uint64_t first_block,
                             uint64_t end_block) {
  if (first_block % kGroupBlocks != 0) {
    std::shared_ptr<Group> boundary;
    const auto index = static_cast<uint32_t>(first_block / kGroupBlocks);
    if (Status s = load_group(*object, index, Wait::kYes, boundary); s != Status::kOk) return s;
  }
  for (auto& [index, group] : object->groups) {
    const uint64_t base = uint64_t{index} * kGroupBlocks;
    const uint64_t from = std::clamp(first_block, base, base + kGroupBlocks);
    const uint64_t to = std::clamp(end_block, base, base + kGroupBlocks);
    if (end_block == kBlocksMax && group->children) {
      cut_map(*group->children, index, groups_kept(first_block * kBlockSize));
      make_dirty(object, *group);
    }
    if (from >= to) continue;
    for (uint64_t block = from; block < to; ++block)
      group->clear(static_cast<uint32_t>(block - base));
    make_dirty(object, *group);
  }
  return Status::kOk;
}

void StoreBody::release_boundary(Object& object, File& file, uint32_t index, uint32_t from) {
  const auto found = object.groups.find(index);
  if (found == object.groups.end()) return;
  Group& group = *found->second;
  const uint64_t length = uint64_t{kGroupBlocks - from} * kBlockSize;
  // the blocks stay occupied
  if (file.punch(block_offset(index, group.slot, from), length) < 0) return;
  for (uint32_t block = from; block < kGroupBlocks; ++block) group.occupied.reset(block);
}

// Called when the truncation is committed: everything behind it is removed from the file, record
// pages too.
Status StoreBody::release_tail(Object& object, uint64_t length) {
  std::shared_ptr<File> file;
  if (Status s = file_of(object, file); s != Status::kOk) return s;
  FileFigures before;
  if (int r = file->figures(before); r < 0) return Status::kEio;
  const uint64_t first_block = round_up_to_block(length) / kBlockSize;
  const uint32_t whole = groups_kept(length);
  if (first_block < uint64_t{whole} * kGroupBlocks) {
    release_boundary(object, *file, whole - 1, static_cast<uint32_t>(first_block % kGroupBlocks));
  }
  const uint64_t low = page_offset(whole, 0);
  const uint64_t high = page_offset(whole, 1);
  if (before.size > high && file->truncate(high) < 0) return Status::kEio;
  if (before.size > kSlotDistance) {
    if (file->punch(low, kSlotDistance - low) < 0) return Status::kEio;
  } else if (before.size > low && file->truncate(low) < 0) {
    return Status::kEio;
  }
  std::erase_if(object.groups, [&](auto& entry) {
    if (entry.first < whole) return false;
    make_clean(*entry.second);
    return true;
  });
  FileFigures after;
  if (int r = file->figures(after); r < 0) return Status::kEio;
  space_.add(static_cast<int64_t>(after.allocated) - static_cast<int64_t>(before.allocated));
  return Status::kOk;
}

Status StoreBody::punch(ObjectId id, uint64_t offset, uint64_t length, uint32_t epoch) {
  if (length == 0 || offset > kObjectBytesMax) return Status::kOk;
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  if (!object->exists) return Status::kNoObject;
  const uint64_t end = std::min(length, kObjectBytesMax - offset) + offset;
  const uint64_t first_block = offset / kBlockSize;
  const RangeLock::Ticket ticket =
      object->range.lock(guard, first_block, round_up_to_block(end) / kBlockSize, true);
  Status status = Status::kOk;
  if (object->broken)
    status = Status::kEio;
  else if (epoch < object->epoch)
    status = Status::kStaleTruncateEpoch;
  else if (object->removed)
    status = Status::kNoObject;
  else
    status = punch_locked(object, guard, offset, end);
  object->range.unlock(ticket);
  return count_error(status);
}

Status StoreBody::punch_locked(const ObjectPointer& object, Guard& guard, uint64_t offset,
                               uint64_t end) {
  end = std::min(end, round_up_to_block(object->length));
  // Behind the object's end there are zeros already.
  if (end >= object->length) end = round_up_to_block(end);
  if (offset >= end) return Status::kOk;
  const uint64_t first = round_up_to_block(offset) / kBlockSize;
  const uint64_t last = end / kBlockSize;
  Edges edges;
  if (offset % kBlockSize != 0) {
    Status s = zero_edge(*object, guard, offset, std::min(round_up_to_block(offset), end), edges);
    if (s != Status::kOk) return s;
  }
  if (end % kBlockSize != 0 && last >= first) {
    Status s = zero_edge(*object, guard, last * kBlockSize, end, edges);
    if (s != Status::kOk) return s;
  }
  std::vector<GroupPiece> pieces =
      first < last ? pieces_of(first, last) : std::vector<GroupPiece>{};
  if (Status s = load_pieces(*object, pieces, Wait::kYes); s != Status::kOk) return s;
  if (edges.runs.empty() && pieces.empty()) return Status::kOk;
  EntryHeader header = header_for(*object, EntryKind::kPunch);
  header.value = std::min(first, last);
  header.value_end = last;
  if (Status s = log_cut(object, header, edges); s != Status::kOk) return s;
  if (first < last) {
    if (Status s = cut_groups(object, first, last); s != Status::kOk) return s;
    object->punched.push_back({first, last, object->last_sequence});
  }
  fault(FaultPoint::kPunchAfterLog);
  return Status::kOk;
}

}  // namespace braidfs::store
