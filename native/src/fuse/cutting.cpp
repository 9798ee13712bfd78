// ftruncate at a lane: a file that only this client may write gets another size at once, and the
// metaserver is told later (docs/decisions/0058-cuts-told-later.md).
#include <sys/stat.h>

#include <algorithm>

#include "fuse/file_time.h"
#include "fuse/lane.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr uint32_t kCuts = FATTR_SIZE | FATTR_FH;
constexpr uint32_t kCuttable = kCuts | FATTR_LOCKOWNER | kFattrKillSuidgid;

}  // namespace

bool cuts_alone(uint32_t valid) noexcept {
  return (valid & kCuts) == kCuts && (valid & ~kCuttable) == 0;
}

// Of a file without set-id bits, extended attributes (one may be a capability) and inode flags, by
// a handle.
bool Lane::cut_answered(const RequestHead& head, uint64_t ino, const fuse_setattr_in& in) {
  const int64_t now_ns = file_time_ns();
  fuse_attr attr{};
  const auto cut = [&](const record::Record& record) {
    if ((record::field<uint32_t>(record, record::kMode) & (S_ISUID | S_ISGID)) != 0) return false;
    if (!parts_.data.cut(context_, {.ino = ino, .fh = in.fh, .size = in.size, .time_ns = now_ns}))
      return false;
    record::Record seen = record;
    record::set_size(seen, in.size);
    record::set_field(seen, record::kMtime, now_ns);
    record::set_field(seen, record::kCtime,
                      std::max(record::field<int64_t>(record, record::kCtime), now_ns));
    attr = attr_of(seen, head.nodeid);
    return true;
  };
  auto out = parts_.attributes.set(ino, head.nodeid, AttributeTable::Clock::now(), cut);
  if (!out) return false;
  struct {
    fuse_out_header header;
    fuse_attr_out body;
  } reply{{sizeof(reply), 0, head.unique}, *out};
  reply.body.attr = attr;
  const auto bytes = std::as_bytes(std::span(&reply, 1));
  if (!parts_.cut_reads.keeps(head.nodeid, attr.size, context_.index, bytes)) {
    parts_.channels.send(context_.index, bytes);
  }
  return true;
}

}  // namespace braidfs::fuse
