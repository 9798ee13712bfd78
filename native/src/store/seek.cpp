// SEEK: the next block that was written, or the next hole, at or behind an offset of an object.
// Looks at records only; a bounded number of groups at a time, so that a large object cannot keep
// its mutex for long: what it has not seen yet it says, and the caller asks again from there.
#include <algorithm>

#include "store/body.h"

namespace braidfs::store {

namespace {

constexpr uint32_t kGroupsPerSeek = 64;

}  // namespace

Status StoreBody::seek(ObjectId id, uint64_t offset, bool hole, SeekResult& result) {
  const ObjectPointer object = table_.get(id);
  Guard guard(object->mu);
  if (Status s = open_object(*object, Wait::kYes); s != Status::kOk) return s;
  if (!object->exists || object->removed) return Status::kNoObject;
  const uint64_t end = (object->length + kBlockSize - 1) / kBlockSize;
  uint64_t block = offset / kBlockSize;
  for (uint32_t looked = 0; block < end && looked < kGroupsPerSeek; ++looked) {
    std::shared_ptr<Group> group;
    const auto index = static_cast<uint32_t>(block / kGroupBlocks);
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

}  // namespace braidfs::store
