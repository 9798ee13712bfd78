#include "names/attribute_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "braidfs/leases.h"
#include "core/file_time.h"
#include "names/attribute_record.h"

namespace braidfs::names {

namespace {

using namespace record;

constexpr int64_t kNanoseconds = kNanosecondsPerSecond;
constexpr uint32_t kBlockSize = 1u << 20;  // as fsclient/fuse/attributes.py says it

void set_time(std::span<const std::byte> record, size_t offset, uint64_t& seconds,
              uint32_t& nanoseconds) noexcept {
  const FileTime time = file_time(field<int64_t>(record, offset));
  seconds = static_cast<uint64_t>(time.seconds);
  nanoseconds = time.nanoseconds;
}

}  // namespace

fuse_attr attr_of(std::span<const std::byte> record, uint64_t nodeid) noexcept {
  fuse_attr attr{};
  attr.ino = nodeid;
  attr.size = field<uint64_t>(record, kSize);
  attr.blocks = field<uint64_t>(record, kBlocks);
  set_time(record, kAtime, attr.atime, attr.atimensec);
  set_time(record, kMtime, attr.mtime, attr.mtimensec);
  set_time(record, kCtime, attr.ctime, attr.ctimensec);
  attr.mode = field<uint32_t>(record, kMode);
  attr.nlink = field<uint32_t>(record, kNlink);
  attr.uid = field<uint32_t>(record, kUid);
  attr.gid = field<uint32_t>(record, kGid);
  attr.rdev = field<uint32_t>(record, kRdev);
  attr.blksize = kBlockSize;
  return attr;
}

AttributeTable::Clock::time_point AttributeTable::end_of(const Slot& slot) const noexcept {
  const Clock::time_point lease{Clock::duration(lease_until_.load())};
  return slot.leased ? std::max(slot.until, lease) : slot.until;
}

bool AttributeTable::is_valid(const Slot* slot, Clock::time_point now) const noexcept {
  return slot != nullptr && end_of(*slot) > now;
}

AttributeTable::Slot* AttributeTable::find(uint64_t ino) noexcept {
  const size_t first = first_slot(ino);
  for (size_t index = first; index < first + kWays; ++index) {
    if (inos_[index] == ino) return &slots_[index];
  }
  return nullptr;
}

AttributeTable::Slot& AttributeTable::place(uint64_t ino, Clock::time_point now) noexcept {
  if (Slot* held = find(ino); held != nullptr) return *held;
  const size_t first = first_slot(ino);
  size_t chosen = first;
  for (size_t index = first; index < first + kWays; ++index) {
    if (end_of(slots_[index]) <= now) {
      chosen = index;
      break;
    }
    if (slots_[index].used_at < slots_[chosen].used_at) chosen = index;
  }
  inos_[chosen] = ino;
  slots_[chosen] = {};
  return slots_[chosen];
}

bool AttributeTable::put(std::span<const std::byte> record, std::chrono::milliseconds valid,
                         Clock::time_point now, bool leased) {
  if (record.size() != kRecordSize) return false;
  const auto ino = field<uint64_t>(record, kIno);
  const std::scoped_lock lock(mutex(ino));
  Slot& held = place(ino, now);
  // A record that is no longer valid counts, too: an older one that comes later must not replace
  // it.
  const bool newer_is_known =
      field<uint64_t>(held.record, kIno) == ino &&
      field<uint64_t>(held.record, kChangeVersion) > field<uint64_t>(record, kChangeVersion);
  if (newer_is_known) return true;
  std::memcpy(held.record.data(), record.data(), kRecordSize);
  held.until = now + valid;
  held.leased = leased;
  held.used_at = now;
  return true;
}

bool AttributeTable::drop(uint64_t ino, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot* held = find(ino);
  if (held == nullptr) return false;
  forget(*held);
  return now - held->used_at < kFresh;
}

void AttributeTable::clear() {
  for (size_t group = 0; group < kGroupCount; ++group) {
    const std::scoped_lock lock(groups_[group]);
    for (size_t set = group; set < kSetCount; set += kGroupCount) {
      for (size_t index = set * kWays; index < (set + 1) * kWays; ++index) {
        slots_[index] = {};  // versions, too: another session may see lower ones
      }
    }
  }
}

std::optional<fuse_attr_out> AttributeTable::getattr(uint64_t ino, uint64_t nodeid,
                                                     Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot* held = find(ino);
  if (!is_valid(held, now)) return std::nullopt;
  held->used_at = now;
  if (!held->leased && !S_ISDIR(field<uint32_t>(held->record, kMode))) return std::nullopt;
  answered_.fetch_add(1, std::memory_order_relaxed);
  return answer_of(*held, nodeid, now);
}

std::optional<bool> AttributeTable::is_immutable(uint64_t ino, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  const Slot* held = find(ino);
  const Clock::time_point lease{Clock::duration(lease_until_.load())};
  if (held == nullptr || !held->leased || lease <= now) return std::nullopt;
  return record::is_immutable(held->record);
}

std::optional<uint64_t> AttributeTable::parent(uint64_t directory, Clock::time_point now) {
  const std::scoped_lock lock(mutex(directory));
  const Slot* held = find(directory);
  if (!is_valid(held, now)) return std::nullopt;
  return field<uint64_t>(held->record, kParent);
}

fuse_attr_out AttributeTable::answer_of(const Slot& slot, uint64_t nodeid,
                                        Clock::time_point now) const noexcept {
  fuse_attr_out out{};
  const bool stays = sealed_ && record::is_immutable(slot.record);
  const auto life = stays ? std::chrono::nanoseconds(kSealedLife) : end_of(slot) - now;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(life).count();
  out.attr_valid = static_cast<uint64_t>(left / kNanoseconds);
  out.attr_valid_nsec = static_cast<uint32_t>(left % kNanoseconds);
  out.attr = attr_of(slot.record, nodeid);
  return out;
}

bool AttributeTable::is_plain_file(const Slot* slot, Clock::time_point now) const noexcept {
  return is_valid(slot, now) && slot->leased && S_ISREG(field<uint32_t>(slot->record, kMode)) &&
         field<uint32_t>(slot->record, kFlags) == 0 &&
         field<uint32_t>(slot->record, kXattrCount) == 0;
}

bool AttributeTable::may_add_names(const Slot* slot, Clock::time_point now) const noexcept {
  if (!is_unprotected(slot, now)) return false;
  const auto mode = field<uint32_t>(slot->record, kMode);
  return S_ISDIR(mode) && (mode & S_ISGID) == 0;
}

void AttributeTable::wrote(uint64_t ino, const Wrote& wrote, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot* held = find(ino);
  if (held == nullptr) return;
  if (!is_plain_file(held, now)) {
    forget(*held);
    return;
  }
  record::Record& record = held->record;
  set_size(record, std::max(field<uint64_t>(record, kSize), wrote.size));
  if (wrote.mtime_ns != 0) {
    set_field(record, kMtime, wrote.mtime_ns);
    set_field(record, kCtime, std::max(field<int64_t>(record, kCtime), wrote.mtime_ns));
  }
  for (const size_t at : {kDataVersion, kChangeVersion}) {
    set_field(record, at, field<uint64_t>(record, at) + 1);
  }
}

void AttributeTable::touch(Slot& directory, int64_t time_ns) noexcept {
  set_field(directory.record, kMtime, time_ns);
  set_field(directory.record, kCtime, time_ns);
  set_field(directory.record, kDataVersion, field<uint64_t>(directory.record, kDataVersion) + 1);
  set_field(directory.record, kChangeVersion,
            field<uint64_t>(directory.record, kChangeVersion) + 1);
}

AttributeTable::Locked::Locked(AttributeTable& table, uint64_t one, uint64_t two, uint64_t three) {
  const size_t a = one % kGroupCount;
  const size_t b = two % kGroupCount;
  const size_t c = three % kGroupCount;
  const size_t low = std::min({a, b, c});
  const size_t high = std::max({a, b, c});
  const size_t middle = a + b + c - low - high;
  locks_[0] = std::unique_lock(table.groups_[low]);
  if (middle != low) locks_[1] = std::unique_lock(table.groups_[middle]);
  if (high != middle) locks_[2] = std::unique_lock(table.groups_[high]);
}

bool AttributeTable::is_unprotected(const Slot* slot, Clock::time_point now) const noexcept {
  return is_valid(slot, now) && slot->leased && field<uint32_t>(slot->record, kFlags) == 0;
}

bool AttributeTable::may_change_names(uint64_t directory, Clock::time_point now) noexcept {
  const Slot* slot = find(directory);
  return is_unprotected(slot, now) && S_ISDIR(field<uint32_t>(slot->record, kMode));
}

bool AttributeTable::may_move(uint64_t ino, Clock::time_point now) noexcept {
  const Slot* slot = find(ino);
  return is_unprotected(slot, now) && !S_ISDIR(field<uint32_t>(slot->record, kMode)) &&
         field<uint32_t>(slot->record, kNlink) > 0;
}

bool AttributeTable::may_go(uint64_t ino, Clock::time_point now) noexcept {
  if (!may_move(ino, now)) return false;
  const Record& record = find(ino)->record;
  return field<uint32_t>(record, kNlink) == 1 &&
         (field<uint32_t>(record, kLeaseFlags) & kOpenElsewhere) == 0;
}

Record AttributeTable::changed(Record record, int64_t time_ns) noexcept {
  set_field(record, kCtime, time_ns);
  set_field(record, kChangeVersion, field<uint64_t>(record, kChangeVersion) + 1);
  return record;
}

Record AttributeTable::removed(Record record, int64_t time_ns) noexcept {
  set_field(record, kNlink, uint32_t{0});
  return changed(record, time_ns);
}

bool AttributeTable::has_no_xattrs(uint64_t ino, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  const Slot* held = find(ino);
  if (!is_valid(held, now) || field<uint32_t>(held->record, kXattrCount) != 0) return false;
  answered_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace braidfs::names
