// Loads objects and groups from record pages into memory, and verifies blocks against them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "braidfs/frame.h"
#include "store/body.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

// Beyond so many, groups are dropped when the table is crowded.
constexpr size_t kGroupsOfOneObjectMax = 1024;

constexpr std::chrono::minutes kToldEvery{1};

// Counts an open file until its last user drops it.
std::shared_ptr<File> counted(std::shared_ptr<File> file, std::atomic<uint64_t>& counter) {
  ++counter;
  File* const raw = file.get();
  return {raw, [held = std::move(file), &counter](File*) mutable {
            held.reset();
            --counter;
          }};
}

}  // namespace

std::vector<GroupPiece> pieces_of(uint64_t first_block, uint64_t end_block) {
  std::vector<GroupPiece> pieces;
  for (uint64_t block = first_block; block < end_block;) {
    GroupPiece piece;
    piece.index = static_cast<uint32_t>(block / kGroupBlocks);
    piece.first = static_cast<uint32_t>(block % kGroupBlocks);
    piece.count =
        static_cast<uint32_t>(std::min<uint64_t>(kGroupBlocks - piece.first, end_block - block));
    block += piece.count;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Opening may read the device, so a caller that does not wait gets kEagain.
Status StoreBody::file_of(Object& object, std::shared_ptr<File>& file, Wait wait) {
  if (!object.file) {
    std::shared_ptr<File> opened;
    const auto mode = wait == Wait::kNo ? OpenMode::kCached : OpenMode::kExisting;
    const int r = device_->open(object_path(object.id), mode, opened);
    if (r == -ENOENT) return Status::kNoObject;
    if (r == -EAGAIN) return Status::kEagain;
    if (r < 0) return not_opened(object, r);
    object.file = counted(std::move(opened), table_.file_counter());
  }
  file = object.file;
  return Status::kOk;
}

Status StoreBody::direct_of(Object& object, std::shared_ptr<File>& file) {
  if (!object.direct) {
    std::shared_ptr<File> opened;
    const int r = device_->open(object_path(object.id), OpenMode::kDirect, opened);
    if (r < 0) return status_of(r);
    object.direct = counted(std::move(opened), table_.file_counter());
  }
  file = object.direct;
  return Status::kOk;
}

Status StoreBody::create_object(Object& object) {
  std::shared_ptr<File> opened;
  const int r = device_->open(object_path(object.id), OpenMode::kCreate, opened);
  if (r < 0) return not_opened(object, r);
  object.file = counted(std::move(opened), table_.file_counter());
  object.exists = true;
  object.name_unsynced = true;
  if (!object.leftover) ++objects_;
  space_.add_file();
  object.leftover = false;
  return Status::kOk;
}

Status StoreBody::load_object(Object& object, Wait wait) {
  if (object.removed) return Status::kNoObject;
  if (!object.loaded) {
    std::shared_ptr<File> file;
    const Status opened = file_of(object, file, wait);
    if (opened != Status::kOk && opened != Status::kNoObject) return opened;
    object.exists = opened == Status::kOk;
    std::shared_ptr<Group> group;
    if (Status s = load_group(object, 0, wait, group); s != Status::kOk) return s;
    object.damaged = group->damaged;
    if (group->generation == 0 && !object.damaged) {
      // It was never checkpointed. A process that was killed may have left the name unsynced,
      // without a log entry.
      object.name_unsynced = object.exists;
      object.mapped = true;
      // After a recovery, all that the log says of objects is in their pages. So nothing of this
      // object was synced.
      object.leftover = object.exists && !recovering_;
      object.exists = object.exists && recovering_;
    }
    object.loaded = true;
  }
  return Status::kOk;
}

Status StoreBody::open_object(Object& object, Wait wait) {
  if (Status s = load_object(object, wait); s != Status::kOk) return s;
  if (object.damaged) {
    report_corrupt(object, 0);
    return Status::kCorrupt;
  }
  return Status::kOk;
}

Status StoreBody::read_pages(File& file, Object& object, uint32_t index, Wait wait,
                             RecordPage (&pages)[2]) {
  for (uint8_t place = 0; place < 2; ++place) {
    const auto raw = std::as_writable_bytes(std::span(&pages[place], 1));
    const uint64_t offset = page_offset(index, place);
    const int r =
        wait == Wait::kNo ? read_cached(file, raw, offset) : read_whole(file, raw, offset);
    if (r == -EAGAIN) return Status::kEagain;
    if (r == -EIO) {  // an unreadable page counts as damaged
      std::memset(raw.data(), 0xff, raw.size());
      count_error(Status::kEio);
      say(40, "cannot read the record page of " + object_path(object.id));
    } else if (r < 0) {
      return count_error(status_of(r));
    }
  }
  return Status::kOk;
}

void StoreBody::adopt_page(Object& object, uint32_t index, const RecordPage (&pages)[2],
                           Group& group) {
  const PageState states[2] = {check(pages[0], object.id, index),
                               check(pages[1], object.id, index)};
  const bool damage = states[0] == PageState::kDamaged || states[1] == PageState::kDamaged;
  int best = -1;
  for (int place = 0; place < 2; ++place) {
    if (states[place] != PageState::kValid) continue;
    if (best < 0 || pages[place].generation > pages[best].generation) best = place;
  }
  // A torn page is one that a checkpoint did not finish. The log has what it was to contain, and
  // names the generation that must exist (checked with each entry). Pages that were cut off do not
  // matter.
  const uint64_t sequence = best < 0 ? 0 : pages[best].applied_sequence;
  const bool cut_off = is_cut_off(object, index, sequence);
  if (damage && !torn_expected_ && !cut_off) group.damaged = true;
  // From the second page on, both places hold one.
  const bool gone =
      best >= 0 && pages[best].generation > 1 && states[1 - best] == PageState::kEmpty;
  const bool replaced = object.floor_sequence != 0 && sequence <= object.floor_sequence;
  if (gone && !cut_off && !replaced) group.damaged = true;
  if (damage) group.place = states[0] == PageState::kDamaged ? 1 : 0;
  if (best < 0) return;
  const RecordPage& page = pages[best];
  group.place = static_cast<uint8_t>(best);
  group.generation = page.generation;
  group.page_sequence = page.applied_sequence;
  group.slot = page.slot;
  if (replaced) return;
  if ((page.flags & kPageLost) != 0 && !cut_off) group.damaged = true;
  if (page.children != ChildMap{}) group.map() = page.children;
  if (torn_expected_) adopt_finished(pages, states, group);
  group.sums = page.sums;
  group.versions = page.versions;
  for (uint32_t i = 0; i < kGroupBlocks; ++i) group.occupied[i] = page.versions[i] != 0;
  if (index != 0) return;
  object.mapped = (page.flags & kPageMapped) != 0;
  object.length = page.object_length;
  object.epoch = page.epoch;
  object.last_sequence = object.committed_sequence = page.applied_sequence;
}

// For recovery after a checkpoint that did not finish: adopts the map of the newest page that the
// checkpoint did not write.
void StoreBody::adopt_finished(const RecordPage (&pages)[2], const PageState (&states)[2],
                               Group& group) const {
  const RecordPage* newest = nullptr;
  for (int place = 0; place < 2; ++place) {
    const RecordPage& page = pages[place];
    const bool finished = page.log_start != 0 && page.log_start <= log_->oldest_start();
    if (states[place] != PageState::kValid || !finished) continue;
    if (newest == nullptr || page.generation > newest->generation) newest = &page;
  }
  if (newest != nullptr) group.finished = std::make_unique<ChildMap>(newest->children);
}

// For recovery only: the page is older than a TRUNCATE or PUNCH in the log, which is applied here.
void StoreBody::apply_cut_to(const Punched& cut, uint32_t index, Group& group) {
  if (cut.sequence <= group.page_sequence) return;
  const uint64_t base = uint64_t{index} * kGroupBlocks;
  const uint64_t from = std::clamp(cut.first, base, base + kGroupBlocks);
  const uint64_t to = std::clamp(cut.end, base, base + kGroupBlocks);
  for (uint64_t block = from; block < to; ++block) group.clear(static_cast<uint32_t>(block - base));
  if (cut.end != kBlocksMax || !group.children) return;
  cut_map(*group.children, index,
          static_cast<uint32_t>((cut.first + kGroupBlocks - 1) / kGroupBlocks));
}

// For recovery only: a TRUNCATE in the log cut off the whole group, and its pages are older than
// that.
bool StoreBody::is_cut_off(const Object& object, uint32_t index, uint64_t page_sequence) noexcept {
  return index != 0 && std::ranges::any_of(object.cuts, [&](const Punched& cut) {
           return cut.end == kBlocksMax && cut.first <= uint64_t{index} * kGroupBlocks &&
                  page_sequence < cut.sequence;
         });
}

// Finds out whether pages of the group existed and are gone. For group 0 the file's mark says so,
// for other groups the map in their parent's page. Both places hold a page once there was a second
// one, so with two pages nothing needs checking. The caller holds object.mu.
Status StoreBody::find_missing_pages(Object& object, uint32_t index, Wait wait, Group& group) {
  if (group.generation > 1 || group.damaged) return Status::kOk;
  if (index == 0) {
    FileFigures figures;
    if (object.file->figures(figures) < 0) return count_error(Status::kEio);
    object.mark = figures.mark;
    group.damaged = figures.mark > group.generation && object.floor_sequence == 0;
    return Status::kOk;
  }
  if (!object.mapped || is_cut_off(object, index, group.page_sequence)) return Status::kOk;
  const ChildPlace place = child_place(index);
  std::shared_ptr<Group> parent;
  if (Status s = load_group(object, place.parent, wait, parent); s != Status::kOk) return s;
  const auto misses = [&](const ChildMap* map) {
    return map != nullptr && in_map(group.generation == 0 ? map->written : map->twice, place);
  };
  group.damaged =
      misses(parent->children.get()) && (!torn_expected_ || misses(parent->finished.get()));
  if (parent->damaged && !torn_expected_) group.damaged = true;
  return Status::kOk;
}

// Notes in the parent's map that the group will have one more page; the same checkpoint writes the
// parent's page.
Status StoreBody::map_page(const ObjectPointer& object, uint32_t index, const Group& group,
                           std::vector<uint32_t>& also) {
  const ChildPlace place = child_place(index);
  std::shared_ptr<Group> parent;
  if (Status s = load_group(*object, place.parent, Wait::kYes, parent); s != Status::kOk) return s;
  ChildMap& map = parent->map();
  const uint64_t bit = uint64_t{1} << (place.index % 64);
  uint64_t& written = map.written[place.level][place.index / 64];
  uint64_t& twice = map.twice[place.level][place.index / 64];
  const bool news = (written & bit) == 0 || (group.generation > 0 && (twice & bit) == 0);
  if (!news) return Status::kOk;
  written |= bit;
  if (group.generation > 0) twice |= bit;
  if (!parent->dirty) also.push_back(place.parent);
  make_dirty(object, *parent);
  return Status::kOk;
}

// Called before a checkpoint: makes the maps name all pages that it will write. The caller holds
// object->mu.
Status StoreBody::map_pages(const ObjectPointer& object) {
  if (!object->mapped) return Status::kOk;
  std::vector<uint32_t> indexes;
  for (const auto& [index, group] : object->groups) {
    if (group->dirty && index != 0) indexes.push_back(index);
  }
  for (size_t at = 0; at < indexes.size(); ++at) {  // the list grows by parents
    if (indexes[at] == 0) continue;
    const std::shared_ptr<Group> group = object->groups.at(indexes[at]);
    if (Status s = map_page(object, indexes[at], *group, indexes); s != Status::kOk) return s;
  }
  return Status::kOk;
}

// Loads the groups before `index` whose maps may name it or later ones. The caller holds object.mu.
Status StoreBody::load_ancestors(Object& object, uint32_t index) {
  if (!object.mapped) return Status::kOk;
  for (const uint32_t parent : ancestors_of(index)) {
    std::shared_ptr<Group> group;
    if (parent >= index) continue;
    if (Status s = load_group(object, parent, Wait::kYes, group); s != Status::kOk) return s;
    if (group->damaged) return Status::kCorrupt;
  }
  return Status::kOk;
}

void StoreBody::apply_cuts(const Object& object, uint32_t index, Group& group) {
  for (const Punched& cut : object.cuts) apply_cut_to(cut, index, group);
}

Status StoreBody::load_group(Object& object, uint32_t index, Wait wait,
                             std::shared_ptr<Group>& group) {
  if (auto found = object.groups.find(index); found != object.groups.end()) {
    group = found->second;
    return Status::kOk;
  }
  auto loaded = std::make_shared<Group>(table_.group_counter());
  if (object.exists) {
    std::shared_ptr<File> file;
    if (Status s = file_of(object, file, wait); s != Status::kOk) return s;
    alignas(kPageSize) RecordPage pages[2];
    if (Status s = read_pages(*file, object, index, wait, pages); s != Status::kOk) return s;
    adopt_page(object, index, pages, *loaded);
    if (Status s = find_missing_pages(object, index, wait, *loaded); s != Status::kOk) return s;
    if (!object.cuts.empty()) apply_cuts(object, index, *loaded);
  }
  drop_groups(object);
  object.groups.emplace(index, loaded);
  group = std::move(loaded);
  return Status::kOk;
}

void StoreBody::drop_groups(Object& object) {
  if (object.groups.size() < kGroupsOfOneObjectMax) return;
  if (table_.group_counter() < config_.groups_cached_max) return;
  std::erase_if(object.groups, [](const auto& entry) {
    return entry.first != 0 && entry.second.use_count() == 1 && !entry.second->dirty &&
           !entry.second->other_busy && entry.second->redo.empty();
  });
}

Status StoreBody::load_pieces(Object& object, std::vector<GroupPiece>& pieces, Wait wait) {
  for (GroupPiece& piece : pieces) {
    if (Status s = load_group(object, piece.index, wait, piece.group); s != Status::kOk) return s;
    if (!piece.group->damaged) continue;
    report_corrupt(object, uint64_t{piece.index} * kGroupBlocks + piece.first);
    return Status::kCorrupt;
  }
  return Status::kOk;
}

void StoreBody::make_dirty(const ObjectPointer& object, Group& group) {
  table_.add_dirty(object);
  if (group.dirty) return;
  group.dirty = true;
  ++dirty_groups_;
}

void StoreBody::make_clean(Group& group) {
  if (!group.dirty) return;
  group.dirty = false;
  --dirty_groups_;
}

// Called after each log entry of the object: group 0 holds length, epoch and the applied sequence.
void StoreBody::changed(const ObjectPointer& object, uint64_t sequence) {
  if (!object->unsynced()) object->unsynced_since = Clock::now();
  object->last_sequence = sequence;
  make_dirty(object, *object->groups.at(0));
}

BlockView StoreBody::view_of(const Group& group, uint32_t index, uint32_t block) {
  BlockView view;
  view.hole = group.hole(block);
  if (view.hole) return view;
  view.sum = group.sums[block];
  view.home = block_offset(index, group.slot, block);
  if (auto found = group.redo.find(block); found != group.redo.end()) view.redo = found->second;
  return view;
}

Status StoreBody::read_block(Object& object, const std::shared_ptr<File>& file, uint64_t block,
                             const BlockView& view, std::span<std::byte> bytes, Wait wait) {
  if (view.hole) {
    std::memset(bytes.data(), 0, bytes.size());
    return Status::kOk;
  }
  if (view.redo) {
    std::memcpy(bytes.data(), view.redo->bytes.data(), bytes.size());
    return Status::kOk;
  }
  const int r = wait == Wait::kNo ? read_cached(*file, bytes, view.home)
                                  : read_whole(*file, bytes, view.home);
  if (r == -EAGAIN) return Status::kEagain;
  if (r >= 0 && xxh3(bytes) == view.sum) return Status::kOk;
  if (reread_direct(object, view, bytes) == Status::kOk) return Status::kOk;
  report_corrupt(object, block);
  return Status::kCorrupt;
}

// Beside O_DIRECT writes the page cache may be stale (read-ahead that raced with them). So the
// block is read from the device before it is called corrupt.
Status StoreBody::reread_direct(Object& object, const BlockView& view, std::span<std::byte> bytes) {
  std::shared_ptr<File> direct;
  {
    const std::lock_guard guard(object.mu);
    if (Status s = direct_of(object, direct); s != Status::kOk) return s;
  }
  const auto aligned = std::make_unique<Block>();
  if (read_whole(*direct, aligned->bytes, view.home) < 0) return Status::kCorrupt;
  if (xxh3(aligned->bytes) != view.sum) return Status::kCorrupt;
  std::memcpy(bytes.data(), aligned->bytes.data(), bytes.size());
  return Status::kOk;
}

Status StoreBody::not_opened(const Object& object, int result) {
  const Status status = status_of(result);
  const Clock::duration now = Clock::now().time_since_epoch();
  Clock::duration told = open_failure_told_.load(std::memory_order_relaxed);
  if (status != Status::kEnospc && now - told >= kToldEvery &&
      open_failure_told_.compare_exchange_strong(told, now)) {
    say(30, "cannot open " + object_path(object.id) + ": " + std::strerror(-result) +
                (status == Status::kBusy ? "; raise LimitNOFILE of this service" : ""));
  }
  return count_error(status);
}

void StoreBody::report_corrupt(const Object& object, uint64_t block) {
  ++errors_;
  if (config_.on_corrupt) config_.on_corrupt({object.id, block * kBlockSize});
}

Status StoreBody::count_error(Status status) noexcept {
  if (status == Status::kEio) ++errors_;
  return status;
}

}  // namespace braidfs::store
