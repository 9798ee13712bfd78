// Names: ftruncate at a lane. A file that only this client may write gets its new size at once, and
// the metaserver is told later (docs/decisions/0058-cuts-told-later.md).
#include <sys/stat.h>

#include <algorithm>

#include "core/file_time.h"
#include "fuse/protocol.h"
#include "names/names.h"

namespace braidfs::names {

namespace {

constexpr uint32_t kCuts = FATTR_SIZE | FATTR_FH;
constexpr uint32_t kCuttable = kCuts | FATTR_LOCKOWNER | fuse::kFattrKillSuidgid;

}  // namespace

bool cuts_alone(uint32_t valid) noexcept {
  return (valid & kCuts) == kCuts && (valid & ~kCuttable) == 0;
}

// The file must be open by a handle, without set-ID bits, extended attributes (one may be a
// capability) and inode flags.
bool Names::cut(const fuse::RequestHead& head, const fuse_setattr_in& in) {
  const uint64_t ino = ino_of(head.nodeid);
  const int64_t now_ns = file_time_ns();
  fuse::LaneContext lane{head.channel};
  fuse_attr attr{};
  const auto cut = [&](const record::Record& record) {
    if ((record::field<uint32_t>(record, record::kMode) & (S_ISUID | S_ISGID)) != 0) return false;
    if (!file_bytes_.cut(lane, {.ino = ino, .fh = in.fh, .size = in.size, .time_ns = now_ns}))
      return false;
    record::Record seen = record;
    record::set_size(seen, in.size);
    record::set_field(seen, record::kMtime, now_ns);
    record::set_field(seen, record::kCtime,
                      std::max(record::field<int64_t>(record, record::kCtime), now_ns));
    attr = attr_of(seen, head.nodeid);
    return true;
  };
  auto out = attributes_.set(ino, head.nodeid, Clock::now(), cut);
  if (!out) return false;
  out->attr = attr;
  session_.reply_attributes(head.channel, head.unique, *out);
  return true;
}

}  // namespace braidfs::names
