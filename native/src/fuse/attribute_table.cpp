#include "fuse/attribute_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "fuse/attribute_record.h"

namespace braidfs::fuse {

namespace {

using namespace record;

constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr uint32_t kBlockSize = 1u << 20;  // as fsclient/fuse/attributes.py says it

// Seconds and nanoseconds of a time that may lie before 1970.
void set_time(std::span<const std::byte> record, size_t offset, uint64_t& seconds,
              uint32_t& nanoseconds) noexcept {
  const auto time = field<int64_t>(record, offset);
  int64_t whole = time / kNanoseconds;
  int64_t rest = time % kNanoseconds;
  if (rest < 0) {
    rest += kNanoseconds;
    --whole;
  }
  seconds = static_cast<uint64_t>(whole);
  nanoseconds = static_cast<uint32_t>(rest);
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

bool AttributeTable::holds(const Slot& slot, uint64_t ino, Clock::time_point now) const noexcept {
  return end_of(slot) > now && field<uint64_t>(slot.record, kIno) == ino;
}

bool AttributeTable::put(std::span<const std::byte> record, std::chrono::milliseconds valid,
                         Clock::time_point now, bool leased) {
  if (record.size() != kRecordSize) return false;
  const auto ino = field<uint64_t>(record, kIno);
  const std::scoped_lock lock(mutex(ino));
  Slot& held = slot(ino);
  const bool newer_is_there =
      holds(held, ino, now) &&
      field<uint64_t>(held.record, kChangeVersion) > field<uint64_t>(record, kChangeVersion);
  if (newer_is_there) return true;
  std::memcpy(held.record.data(), record.data(), kRecordSize);
  held.until = now + valid;
  held.leased = leased;
  held.told = now;
  return true;
}

bool AttributeTable::drop(uint64_t ino, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot& held = slot(ino);
  if (field<uint64_t>(held.record, kIno) != ino) return false;
  held.until = {};
  held.leased = false;
  return now - held.told < kFresh;
}

void AttributeTable::clear() {
  for (size_t group = 0; group < kGroupCount; ++group) {
    const std::scoped_lock lock(groups_[group]);
    for (size_t index = group; index < kSlotCount; index += kGroupCount) {
      slots_[index].until = {};
      slots_[index].leased = false;
    }
  }
}

std::optional<fuse_attr_out> AttributeTable::getattr(uint64_t ino, uint64_t nodeid,
                                                     Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot& held = slot(ino);
  if (!holds(held, ino, now)) return std::nullopt;
  held.told = now;
  if (!held.leased && !S_ISDIR(field<uint32_t>(held.record, kMode))) return std::nullopt;
  fuse_attr_out out{};
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end_of(held) - now).count();
  out.attr_valid = static_cast<uint64_t>(left / kNanoseconds);
  out.attr_valid_nsec = static_cast<uint32_t>(left % kNanoseconds);
  out.attr = attr_of(held.record, nodeid);
  answered_.fetch_add(1, std::memory_order_relaxed);
  return out;
}

bool AttributeTable::touch_directory(uint64_t ino, int64_t time_ns, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  Slot& held = slot(ino);
  if (!holds(held, ino, now) || !held.leased) return false;
  const auto mode = field<uint32_t>(held.record, kMode);
  const bool plain = field<uint32_t>(held.record, kXattrCount) == 0 &&
                     field<uint32_t>(held.record, kFlags) == 0 && (mode & S_ISGID) == 0;
  if (!S_ISDIR(mode) || !plain) return false;
  touch(held, time_ns);
  return true;
}

void AttributeTable::touch(Slot& directory, int64_t time_ns) noexcept {
  set_field(directory.record, kMtime, time_ns);
  set_field(directory.record, kCtime, time_ns);
  set_field(directory.record, kDataVersion, field<uint64_t>(directory.record, kDataVersion) + 1);
  set_field(directory.record, kChangeVersion, field<uint64_t>(directory.record, kChangeVersion) + 1);
}

bool AttributeTable::may_lose_name(uint64_t directory, uint64_t ino, Clock::time_point now) noexcept {
  const auto is_plain = [&](uint64_t number) {
    const Slot& held = slot(number);
    return holds(held, number, now) && held.leased && field<uint32_t>(held.record, kFlags) == 0;
  };
  if (!is_plain(directory) || !is_plain(ino)) return false;
  const Record& gone = slot(ino).record;
  return S_ISDIR(field<uint32_t>(slot(directory).record, kMode)) &&
         !S_ISDIR(field<uint32_t>(gone, kMode)) && field<uint32_t>(gone, kNlink) == 1 &&
         (field<uint32_t>(gone, kLeaseFlags) & kOpenElsewhere) == 0;
}

Record AttributeTable::removed(Record record, int64_t time_ns) noexcept {
  set_field(record, kNlink, uint32_t{0});
  set_field(record, kCtime, time_ns);
  set_field(record, kChangeVersion, field<uint64_t>(record, kChangeVersion) + 1);
  return record;
}

bool AttributeTable::is_bare(uint64_t ino, Clock::time_point now) {
  const std::scoped_lock lock(mutex(ino));
  const Slot& held = slot(ino);
  if (!holds(held, ino, now) || field<uint32_t>(held.record, kXattrCount) != 0) return false;
  answered_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace braidfs::fuse
