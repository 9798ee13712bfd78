// EXAMINE: reads a group of an object from the device and compares it with its records. MEND:
// writes blocks whose bytes are damaged, at the place where they lie.
//
// Both read past the page cache, because what is in memory says nothing about the device, and leave
// it as it is. Nothing that is found here is reported as damage that a reader met.
//
// An examination takes no lock while it reads: a writer never waits for it. A block that differs
// from its record may have been written meanwhile, so it is read again under its range lock.
//
// A mend writes exactly the bytes that the record names, and only where the device has others. The
// range lock keeps the record as it is. So it cannot undo a write, whatever the mender believed,
// and a power cut leaves a block as damaged as it was. It needs no entry in the log.
#include <algorithm>
#include <cstring>

#include "braidfs/frame.h"
#include "store/body.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

struct GroupBytes {
  std::array<Block, kGroupBlocks> blocks;
};

bool is_on_device(const BlockView& view) noexcept { return !view.hole && !view.redo; }

bool differs(File& file, const BlockView& view, std::span<std::byte> bytes) {
  return read_whole(file, bytes, view.home) < 0 || xxh3(bytes) != view.sum;
}

// Reads all blocks from the first to the last that lies on the device. False: not all can be read.
bool read_views(File& file, std::span<const BlockView> views, GroupBytes& bytes, Examined& found) {
  const auto first = std::ranges::find_if(views, is_on_device);
  if (first == views.end()) return true;
  const auto last = std::find_if(views.rbegin(), views.rend(), is_on_device);
  const auto from = static_cast<size_t>(first - views.begin());
  const auto count = static_cast<size_t>(last.base() - first);
  found.bytes = count * kBlockSize;
  const std::span raw(bytes.blocks[from].bytes.data(), found.bytes);
  return read_whole(file, raw, first->home) >= 0;
}

}  // namespace

Status StoreBody::examine(ObjectId id, uint32_t group, bool reads, Examined& found) {
  const ObjectPointer object = table_.get(id);
  std::vector<BlockView> views;
  found = {};
  if (Status s = look_at(*object, group, found, views); s != Status::kOk) return s;
  if (found.ended || found.records_lost) return Status::kOk;
  const uint64_t first = uint64_t{found.group} * kGroupBlocks;
  for (uint32_t index = 0; index < views.size(); ++index) {
    const BlockView& view = views[index];
    if (!view.hole && view.sum != zero_block_sum()) found.sums.push_back({first + index, view.sum});
  }
  return reads ? look_for_damage(object, views, found) : Status::kOk;
}

Status StoreBody::look_for_damage(const ObjectPointer& object, std::span<const BlockView> views,
                                  Examined& found) {
  std::shared_ptr<File> file;
  if (Status s = open_past_cache(*object, file); s != Status::kOk) return s;
  const auto bytes = std::make_unique<GroupBytes>();
  const bool whole = read_views(*file, views, *bytes, found);
  for (uint32_t index = 0; index < views.size(); ++index) {
    const BlockView& view = views[index];
    const uint64_t block = uint64_t{found.group} * kGroupBlocks + index;
    if (!is_on_device(view) || (whole && xxh3(bytes->blocks[index].bytes) == view.sum)) continue;
    bool damaged = false;
    if (Status s = look_again(*object, *file, block, damaged); s != Status::kOk) return s;
    if (damaged) found.damaged.push_back(block);
  }
  return renew_records(object, *file, found);
}

// Finds the group, and what its records say. Groups that are not in memory are not kept there.
Status StoreBody::look_at(Object& object, uint32_t group, Examined& found,
                          std::vector<BlockView>& views) {
  Guard guard(object.mu);
  if (Status s = load_object(object, Wait::kYes); s != Status::kOk) return s;
  if (!object.exists) return Status::kNoObject;
  found.epoch = object.epoch;
  found.length = object.length;
  found.records_lost = found.ended = object.damaged;
  if (object.damaged) return Status::kOk;
  const bool known = object.groups.contains(group);
  const uint64_t next = known ? group : next_group(object, group);
  found.ended = next * kGroupBytes >= object.length;
  if (found.ended) return Status::kOk;
  found.group = static_cast<uint32_t>(next);
  std::shared_ptr<Group> records;
  if (Status s = group_on_disk(object, found.group, records); s != Status::kOk) return s;
  found.records_lost = records->damaged;
  if (records->damaged) return Status::kOk;
  const uint64_t left = object.length - next * kGroupBytes;
  const auto count = std::min<uint64_t>(kGroupBlocks, (left + kBlockSize - 1) / kBlockSize);
  for (uint32_t block = 0; block < count; ++block)
    views.push_back(view_of(*records, found.group, block));
  return Status::kOk;
}

// As load_group(), but the group is not kept in memory if it was not there. Read only.
Status StoreBody::group_on_disk(Object& object, uint32_t index, std::shared_ptr<Group>& group) {
  if (object.groups.contains(index)) return load_group(object, index, Wait::kYes, group);
  group = std::make_shared<Group>(table_.group_counter());
  std::shared_ptr<File> file;
  if (Status s = file_of(object, file); s != Status::kOk) return s;
  alignas(kPageSize) RecordPage pages[2];
  if (Status s = read_pages(*file, object, index, Wait::kYes, pages); s != Status::kOk) return s;
  adopt_page(object, index, pages, *group);
  return find_missing_pages(object, index, Wait::kYes, *group);
}

// Some filesystems have no O_DIRECT: their bytes are in memory.
Status StoreBody::open_past_cache(Object& object, std::shared_ptr<File>& file) {
  const int r = device_->open(object_path(object.id), OpenMode::kDirect, file);
  if (r == 0) return Status::kOk;
  if (r == -ENOENT) return Status::kNoObject;
  const std::lock_guard guard(object.mu);
  return file_of(object, file);
}

// Whether the block is damaged as it is now.
Status StoreBody::look_again(Object& object, File& file, uint64_t block, bool& damaged) {
  const auto index = static_cast<uint32_t>(block / kGroupBlocks);
  Guard guard(object.mu);
  const RangeLock::Ticket ticket = object.range.lock(guard, block, block + 1, false);
  std::shared_ptr<Group> group;
  Status status = object.removed ? Status::kNoObject : group_on_disk(object, index, group);
  if (status == Status::kOk && !group->damaged) {
    const BlockView view = view_of(*group, index, static_cast<uint32_t>(block % kGroupBlocks));
    guard.unlock();
    const auto bytes = std::make_unique<Block>();
    damaged = is_on_device(view) && differs(file, view, bytes->bytes);
    guard.lock();
  }
  object.range.unlock(ticket);
  return status;
}

namespace {

bool are_whole(File& file, const Object& object, uint32_t index, uint32_t generation,
               uint8_t place) {
  alignas(kPageSize) RecordPage pages[2];
  for (uint8_t at = 0; at < 2; ++at) {
    const auto raw = std::as_writable_bytes(std::span(&pages[at], 1));
    if (read_whole(file, raw, page_offset(index, at)) < 0) return false;
  }
  const PageState other = check(pages[1 - place], object.id, index);
  return check(pages[place], object.id, index) == PageState::kValid &&
         pages[place].generation == generation && other != PageState::kDamaged &&
         (generation == 1 || other == PageState::kValid);
}

}  // namespace

// The records of a group that is in memory are right there. If their pages are damaged on the
// device, both are written again.
Status StoreBody::renew_records(const ObjectPointer& object, File& file, Examined& found) {
  std::shared_ptr<Group> group;
  uint32_t generation = 0;
  uint8_t place = 0;
  const auto is_at_rest = [&] {  // no checkpoint has it in work
    return !group->dirty && group->generation != 0 && group.use_count() == 2;
  };
  {
    const std::lock_guard guard(object->mu);
    const auto known = object->groups.find(found.group);
    if (known == object->groups.end()) return Status::kOk;
    group = known->second;
    generation = group->generation;
    place = group->place;
    if (!is_at_rest()) return Status::kOk;
  }
  if (are_whole(file, *object, found.group, generation, place)) return Status::kOk;
  {
    const std::lock_guard guard(object->mu);
    if (object->removed || !is_at_rest() || group->generation != generation) return Status::kOk;
  }
  ++found.records_renewed;
  for (int turn = 0; turn < 2; ++turn) {  // the pages are written in turn
    {
      const std::lock_guard guard(object->mu);
      if (object->removed) return Status::kOk;
      make_dirty(object, *group);
    }
    if (Status s = checkpoint(); s != Status::kOk) return s;
  }
  return Status::kOk;
}

Status StoreBody::mend(ObjectId id, uint64_t block, std::span<const std::byte> bytes,
                       Mended& mended) {
  mended = {};
  const uint64_t end = block + bytes.size() / kBlockSize;
  if (bytes.empty() || bytes.size() % kBlockSize != 0 || bytes.size() > kGroupBytes ||
      end > kBlocksMax) {
    return Status::kBadRequest;
  }
  const ObjectPointer object = table_.get(id);
  std::shared_ptr<File> file;
  Guard guard(object->mu);
  if (Status s = load_object(*object, Wait::kYes); s != Status::kOk) return s;
  const RangeLock::Ticket ticket = object->range.lock(guard, block, end, true);
  Status status = object->removed || !object->exists ? Status::kNoObject
                  : object->damaged                  ? Status::kCorrupt
                  : object->broken                   ? Status::kEio
                                                     : Status::kOk;
  std::vector<GroupPiece> pieces = pieces_of(block, end);
  for (GroupPiece& piece : pieces) {
    if (status != Status::kOk) break;
    status = group_on_disk(*object, piece.index, piece.group);
    if (status == Status::kOk && piece.group->damaged) status = Status::kCorrupt;
  }
  if (status == Status::kOk) {
    guard.unlock();
    status = mend_locked(*object, pieces, bytes, mended);
    guard.lock();
  }
  object->range.unlock(ticket);
  return status;
}

// The caller holds the range lock: neither records nor places of the blocks change.
Status StoreBody::mend_locked(Object& object, std::span<const GroupPiece> pieces,
                              std::span<const std::byte> bytes, Mended& mended) {
  std::shared_ptr<File> file;
  if (Status s = open_past_cache(object, file); s != Status::kOk) return s;
  std::vector<BlockView> written;
  const auto one = std::make_unique<Block>();
  for (const GroupPiece& piece : pieces) {
    for (uint32_t i = 0; i < piece.count; ++i, bytes = bytes.subspan(kBlockSize)) {
      BlockView view;
      {
        const std::lock_guard guard(object.mu);
        view = view_of(*piece.group, piece.index, piece.first + i);
      }
      if (!is_on_device(view) || !differs(*file, view, one->bytes)) continue;
      std::memcpy(one->bytes.data(), bytes.data(), kBlockSize);
      const bool is_it = xxh3(one->bytes) == view.sum;
      if (is_it && write_whole(*file, one->bytes, view.home) >= 0) {
        written.push_back(std::move(view));
      } else {
        ++mended.left;
      }
    }
  }
  if (written.empty()) return Status::kOk;
  if (file->sync() < 0) {  // the kernel may have dropped what others have written
    const std::lock_guard guard(object.mu);
    object.broken = true;
    return count_error(Status::kEio);
  }
  for (const BlockView& view : written)
    ++(differs(*file, view, one->bytes) ? mended.left : mended.mended);
  return Status::kOk;
}

}  // namespace braidfs::store
