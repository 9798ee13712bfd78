// SEEK: finds the next written block, or the next hole, at or behind an offset of an object.
//
// It looks at records only, and at a bounded number of groups per call, so that a large object does
// not hold its mutex for long. The result says where the search stopped, and the caller goes on
// from there.
#include <algorithm>
#include <cerrno>

#include "store/body.h"

namespace braidfs::store {

namespace {

constexpr uint32_t kGroupsPerSeek = 64;

}  // namespace

Status StoreBody::seek(ObjectId id, uint32_t epoch, uint64_t offset, bool hole,
                       SeekResult& result) {
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  if (!object->exists || object->removed) return Status::kNoObject;
  if (epoch < object->epoch) return Status::kStaleTruncateEpoch;
  const uint64_t end = (object->length + kBlockSize - 1) / kBlockSize;
  uint64_t block = offset / kBlockSize;
  for (uint32_t looked = 0; block < end && looked < kGroupsPerSeek; ++looked) {
    std::shared_ptr<Group> group;
    auto index = static_cast<uint32_t>(block / kGroupBlocks);
    if (!hole && !object->groups.contains(index)) {
      const uint64_t next = next_group(*object, index);
      block = std::max(block, std::min(end, next * kGroupBlocks));
      index = static_cast<uint32_t>(block / kGroupBlocks);
      if (block == end) break;
    }
    if (Status s = load_group(*object, index, Wait::kYes, group); s != Status::kOk) return s;
    if (group->damaged) return Status::kCorrupt;
    const uint64_t group_end = std::min(end, (uint64_t{index} + 1) * kGroupBlocks);
    for (; block < group_end; ++block) {
      if (group->hole(static_cast<uint32_t>(block % kGroupBlocks)) != hole) continue;
      result = {std::max(offset, block * kBlockSize), true};
      return Status::kOk;
    }
  }
  if (block < end) {
    result = {block * kBlockSize, false};
  } else {
    result = {hole ? std::max(offset, end * kBlockSize) : SeekResult::kNothing, true};
  }
  return Status::kOk;
}

// The first group from `index` on of which anything is known: it is in memory, or has a record page
// in the file (a hole has none). Where maps say which pages exist, the file is not searched,
// because it may have lost some.
uint64_t StoreBody::next_group(Object& object, uint32_t index) {
  uint64_t next = kGroupCountMax;
  for (const auto& [number, group] : object.groups) {
    if (number >= index) next = std::min<uint64_t>(next, number);
  }
  if (object.mapped) {
    for (const uint32_t parent : ancestors_of(index)) {
      std::shared_ptr<Group> group;
      if (load_group(object, parent, Wait::kYes, group) != Status::kOk) return index;
      if (group->damaged) return index;
      if (group->children)
        next = std::min<uint64_t>(next, next_in_map(*group->children, parent, index));
    }
    return next;
  }
  std::shared_ptr<File> file;
  if (file_of(object, file) != Status::kOk) return index;
  for (const uint8_t place : {0, 1}) {
    const int64_t found = file->next_data(page_offset(index, place));
    if (found == -ENXIO) continue;
    if (found < 0) return index;
    const uint64_t within = static_cast<uint64_t>(found) - place * kSlotDistance;
    next = std::min(next, within / kGroupStride);
  }
  return next;
}

}  // namespace braidfs::store
