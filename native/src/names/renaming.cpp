// Names: UNLINK and RENAME in a directory that is delegated to this client
// (docs/decisions/0014-removals.md and 0025-renames.md).
#include "core/file_time.h"
#include "names/names.h"

namespace braidfs::names {

// Removes the name of a file that nobody has open from a delegated directory. Python does all other
// removals.
bool Names::unlink(const fuse::RequestHead& head, std::string_view name) {
  const uint64_t parent = ino_of(head.nodeid);
  return dentries_.remove(parent, name, Clock::now(), [&](uint64_t ino) {
    if (!take_name(parent, name, ino)) return false;
    reply_error(head, 0);
    return true;
  });
}

bool Names::take_name(uint64_t parent, std::string_view name, uint64_t ino) {
  const auto now = Clock::now();
  const int64_t time_ns = file_time_ns();
  return let_go(ino, now) && with_room([&] {
           return attributes_.remove(parent, ino, time_ns, now, [&](const record::Record& record) {
             push(Removal{ino, parent, time_ns, std::string(name), record});
             return true;
           });
         });
}

bool Names::let_go(uint64_t ino, Clock::time_point now) {
  known().learn(ino, now);
  return children_.drop_unless(ino, [&](bool) { return file_bytes_.is_busy(ino); });
}

// Renames an inode that is no directory within one delegated directory; an inode that had the new
// name must be open nowhere. Python does all other renames.
bool Names::rename(const fuse::RequestHead& head, const fuse::RenameRequest& request) {
  const uint64_t parent = ino_of(head.nodeid);
  const auto take = [&](uint64_t ino, uint64_t replaced) {
    if (replaced != 0 && !request.replaces) return false;
    if (!take_move({.ino = ino,
                    .replaced = replaced,
                    .parent = parent,
                    .time_ns = file_time_ns(),
                    .name = std::string(request.name),
                    .new_name = std::string(request.new_name)})) {
      return false;
    }
    reply_error(head, 0);
    return true;
  };
  return dentries_.rename(parent, request.name, request.new_name, Clock::now(), take);
}

bool Names::take_move(Move move) {
  const auto now = Clock::now();
  known().learn(move.ino, now);
  if (file_bytes_.is_ahead(move.ino)) return false;
  // The directory's grant describes the inode as it was before; Python deals with open files.
  const auto is_open_by_grant = [&](bool is_known) {
    return is_known && file_bytes_.is_busy(move.ino);
  };
  if (!children_.drop_unless(move.ino, is_open_by_grant)) return false;
  if (move.replaced != 0 && !let_go(move.replaced, now)) return false;
  return with_room([&] {
    const auto take = [&](const record::Record& moved, const record::Record& replaced) {
      move.record = moved;
      move.replaced_record = replaced;
      push(std::move(move));
      return true;
    };
    return attributes_.rename(move.parent, move.ino, move.replaced, move.time_ns, now, take);
  });
}

}  // namespace braidfs::names
