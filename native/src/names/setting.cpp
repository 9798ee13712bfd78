// Names: SETATTR of a file that only this client may write, or that nobody has open and whose name
// is in a delegated directory (docs/decisions/0024-settings.md). Python does every other SETATTR.
#include <sys/stat.h>

#include <algorithm>

#include "core/file_time.h"
#include "fuse/protocol.h"
#include "names/names.h"

namespace braidfs::names {

namespace {

// SET_* of fscommon/wire/messages.py.
constexpr uint32_t kSetMode = 1, kSetUid = 2, kSetGid = 4, kSetAtime = 16, kSetMtime = 32;
constexpr uint32_t kSetCtime = 64, kSetKillSuidgid = 128;
constexpr uint32_t kSets = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_ATIME | FATTR_MTIME;
constexpr uint32_t kSettable = kSets | FATTR_ATIME_NOW | FATTR_MTIME_NOW | FATTR_FH |
                               FATTR_LOCKOWNER | FATTR_CTIME | fuse::kFattrKillSuidgid;

Setting setting_of(const fuse_setattr_in& in, uint64_t ino) {
  const int64_t now_ns = file_time_ns();
  const auto time = [&](uint32_t is_now, uint64_t seconds, uint32_t nanoseconds) {
    return (in.valid & is_now) != 0 ? now_ns : file_time_ns(seconds, nanoseconds);
  };
  Setting setting{.ino = ino, .mode = in.mode & record::kPermissions, .uid = in.uid, .gid = in.gid};
  const auto set = [&](uint32_t asked, uint32_t bit) {
    if ((in.valid & asked) != 0) setting.valid |= bit;
  };
  set(FATTR_MODE, kSetMode);
  set(FATTR_UID, kSetUid);
  set(FATTR_GID, kSetGid);
  set(FATTR_ATIME, kSetAtime);
  set(FATTR_MTIME, kSetMtime);
  set(fuse::kFattrKillSuidgid, kSetKillSuidgid);
  setting.valid |= kSetCtime;
  setting.atime_ns = time(FATTR_ATIME_NOW, in.atime, in.atimensec);
  setting.mtime_ns = time(FATTR_MTIME_NOW, in.mtime, in.mtimensec);
  setting.ctime_ns = (in.valid & FATTR_CTIME) != 0 ? file_time_ns(in.ctime, in.ctimensec) : now_ns;
  return setting;
}

// The record as this client sees it, with what was written but not committed.
record::Record with_written(const Setting& setting, const fuse::DataHandler::Ahead& ahead) {
  record::Record record = setting.record;
  if (ahead.size > record::field<uint64_t>(record, record::kSize)) {
    record::set_size(record, ahead.size);
  }
  const bool sets_mtime = (setting.valid & kSetMtime) != 0;
  if (!sets_mtime && ahead.mtime_ns != 0) {
    record::set_field(record, record::kMtime, ahead.mtime_ns);
  }
  return record;
}

void set_in_record(const Setting& setting, record::Record& record) {
  const auto set = [&](uint32_t bit, size_t at, auto value) {
    if ((setting.valid & bit) != 0) record::set_field(record, at, value);
  };
  const uint32_t type = record::field<uint32_t>(record, record::kMode) & S_IFMT;
  set(kSetMode, record::kMode, type | setting.mode);
  set(kSetUid, record::kUid, setting.uid);
  set(kSetGid, record::kGid, setting.gid);
  set(kSetAtime, record::kAtime, setting.atime_ns);
  set(kSetMtime, record::kMtime, setting.mtime_ns);
  set(kSetCtime, record::kCtime, setting.ctime_ns);
  record::set_field(record, record::kChangeVersion,
                    record::field<uint64_t>(record, record::kChangeVersion) + 1);
}

}  // namespace

bool Names::setattr(const fuse::RequestHead& head, const fuse_setattr_in& in) {
  if (cuts_alone(in.valid)) return cut(head, in);
  if ((in.valid & ~kSettable) != 0 || (in.valid & kSets) == 0) return false;
  if (!dentries_.any_delegated()) return false;  // else Python does not look for changes
  const uint64_t ino = ino_of(head.nodeid);
  const Setting setting = setting_of(in, ino);
  const bool sets_mtime = (setting.valid & kSetMtime) != 0;
  const auto now = Clock::now();
  const auto of_a_writer = [&](const record::Record& record) {
    const auto ahead = file_bytes_.before_setting(ino, sets_mtime);
    if (ahead && (setting.valid & kSetMode) != 0) {
      file_bytes_.set_ids_put(ino, setting.mode, record::field<uint32_t>(record, record::kGid));
    }
    return ahead;
  };
  const auto of_nobody =
      [](const record::Record& record) -> std::optional<fuse::DataHandler::Ahead> {
    const bool is_open =
        (record::field<uint32_t>(record, record::kLeaseFlags) & kOpenElsewhere) != 0;
    if (is_open || record::field<uint32_t>(record, record::kNlink) != 1) return std::nullopt;
    return fuse::DataHandler::Ahead{.size = record::field<uint64_t>(record, record::kSize)};
  };
  return take_setting(head, setting, now, of_a_writer) || dentries_.at_home(ino, now, [&] {
    return let_go(ino, now) && take_setting(head, setting, now, of_nobody);
  });
}

// ahead(record): what lanes know beyond the record; nothing when the attributes may not be set
// here.
template <typename Ahead>
bool Names::take_setting(const fuse::RequestHead& head, Setting setting, Clock::time_point now,
                         Ahead ahead) {
  fuse_attr attr{};
  const auto set = [&](record::Record& record) {
    return may_be_set(record, setting) && with_room([&] {
             const auto known = ahead(record);
             if (!known) return false;
             if ((setting.valid & kSetMtime) != 0) setting.written_ns = known->mtime_ns;
             setting.ctime_ns =
                 std::max(setting.ctime_ns, record::field<int64_t>(record, record::kCtime));
             set_in_record(setting, record);
             setting.record = record;
             attr = attr_of(with_written(setting, *known), head.nodeid);
             push(setting);
             return true;
           });
  };
  auto out = attributes_.set(setting.ino, head.nodeid, now, set);
  if (!out) return false;
  out->attr = attr;
  reply(head, *out);
  return true;
}

// Files with set-ID bits, which a change of owner clears, and owners that may have quotas are left
// to Python.
bool Names::may_be_set(const record::Record& record, const Setting& setting) {
  if ((setting.valid & (kSetUid | kSetGid | kSetKillSuidgid)) == 0) return true;
  const auto uid = record::field<uint32_t>(record, record::kUid);
  const auto gid = record::field<uint32_t>(record, record::kGid);
  if ((record::field<uint32_t>(record, record::kMode) & (S_ISUID | S_ISGID)) != 0) return false;
  return dentries_.owners_known() && !journal_.refuses(uid, gid) &&
         !journal_.refuses(setting.uid, setting.gid);
}

}  // namespace braidfs::names
