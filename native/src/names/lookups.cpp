// Names: LOOKUP, GETATTR, GETXATTR and READDIRPLUS.
#include <cerrno>

#include "names/names.h"

namespace braidfs::names {

// is_ahead() is called before the table is read: the table then has what lanes wrote until that
// call.
bool Names::getattr(const fuse::RequestHead& head) {
  const uint64_t ino = ino_of(head.nodeid);
  if (file_bytes_.is_ahead(ino)) return false;
  const auto attributes = known().find(ino, head.nodeid, Clock::now());
  if (!attributes) return false;
  session_.reply_attributes(head.channel, head.unique, *attributes);
  return true;
}

// The metaserver computes "braidfs." attributes: even an inode without stored attributes has them.
bool Names::getxattr(const fuse::RequestHead& head, std::string_view name) {
  if (name.starts_with("braidfs.")) return false;
  const uint64_t ino = ino_of(head.nodeid);
  const auto now = Clock::now();
  const auto has_no_xattrs = [&] { return attributes_.has_no_xattrs(ino, now); };
  if (!has_no_xattrs() && !(known().learn(ino, now) && has_no_xattrs())) return false;
  reply_error(head, ENODATA);
  return true;
}

bool Names::lookup(const fuse::RequestHead& head, std::string_view name) {
  const auto now = Clock::now();
  return dentries_.find(ino_of(head.nodeid), name, now, [&](const DentryTable::Found& found) {
    return answer_name(head, found, now);
  });
}

// An absent name with a time is answered as an entry of node 0, one without a time as an error.
bool Names::answer_name(const fuse::RequestHead& head, const DentryTable::Found& found,
                        Clock::time_point now) {
  fuse_entry_out out{};
  if (found.kind == DentryTable::Found::Kind::kAbsent) {
    if (found.valid.count() == 0) {
      reply_error(head, ENOENT);
      return true;
    }
  } else {
    if (file_bytes_.is_ahead(found.ino)) return false;
    const auto attributes = known().find(found.ino, found.ino, now);
    if (!attributes) return false;
    out.nodeid = found.ino;
    out.attr_valid = attributes->attr_valid;
    out.attr_valid_nsec = attributes->attr_valid_nsec;
    out.attr = attributes->attr;
    out.attr.size = session_.size_to_tell(found.ino, out.attr.size);
    if (out.attr.size != attributes->attr.size) out.attr_valid = out.attr_valid_nsec = 0;
  }
  fuse::set_valid(out, found.valid);
  attributes_.keep_name(out);
  reply(head, out);
  return true;
}

bool Names::readdirplus(const fuse::RequestHead& head, uint64_t offset, uint32_t size) {
  return lister_.read(ino_of(head.nodeid), offset, size, [&](std::span<const std::byte> body) {
    session_.reply_body(head.channel, head.unique, body);
  });
}

}  // namespace braidfs::names
