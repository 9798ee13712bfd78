// Names: CREATE of a new file in a directory that is delegated to this client. Python does every
// other CREATE.
#include <fcntl.h>
#include <sys/stat.h>

#include "core/file_time.h"
#include "fuse/protocol.h"
#include "names/names.h"

namespace braidfs::names {

namespace {

// The body of a reply to CREATE.
struct CreateReply {
  fuse_entry_out entry;
  fuse_open_out open;
};
static_assert(sizeof(CreateReply) == sizeof(fuse_entry_out) + sizeof(fuse_open_out));

CreateReply reply_to(const Birth& birth, std::span<const std::byte> record,
                     std::chrono::nanoseconds valid) noexcept {
  CreateReply reply{};
  reply.entry.nodeid = birth.ino;
  fuse::set_valid(reply.entry, valid);
  reply.entry.attr_valid = reply.entry.entry_valid;
  reply.entry.attr_valid_nsec = reply.entry.entry_valid_nsec;
  reply.entry.attr = attr_of(record, birth.ino);
  reply.open.fh = birth.fh;
  reply.open.open_flags = FOPEN_KEEP_CACHE;
  if (fuse::writes_only(birth.open_flags))
    reply.open.open_flags |= fuse::kFopenDirectIo | fuse::kFopenParallelDirectWrites;
  return reply;
}

}  // namespace

bool Names::create(const fuse::RequestHead& head, const fuse_create_in& in, std::string_view name) {
  if (!S_ISREG(in.mode) || (in.flags & O_DIRECT) != 0) return false;
  if (journal_.refuses(head.uid, head.gid)) return false;
  return dentries_.create(ino_of(head.nodeid), name, Clock::now(),
                          [&](auto valid) { return give_birth(head, in, name, valid); });
}

uint64_t Names::give_birth(const fuse::RequestHead& head, const fuse_create_in& in,
                           std::string_view name, std::chrono::nanoseconds valid) {
  const uint64_t parent = ino_of(head.nodeid);
  const auto now = Clock::now();
  const int64_t time_ns = file_time_ns();
  std::optional<BirthSlot> slot;
  const auto take = [&](uint32_t xattr_count) {
    slot = journal_.take_slot(parent, xattr_count);
    return slot.has_value();
  };
  if (!attributes_.touch_directory(parent, time_ns, now, take)) return 0;
  Birth birth{.ino = slot->ino,
              .parent = parent,
              .fh = journal_.next_handle(),
              .time_ns = time_ns,
              .mode = in.mode & record::kPermissions & ~in.umask,
              .uid = head.uid,
              .gid = head.gid,
              .open_flags = in.flags,
              .name = std::string(name),
              .layout = std::move(slot->layout)};
  const auto record = new_file_record(birth);
  if (!file_bytes_.born(record, std::as_bytes(std::span(birth.layout)),
                        std::as_bytes(std::span(slot->capability)),
                        {birth.fh, in.flags, slot->size_limit})) {
    return 0;
  }
  attributes_.put(record, std::chrono::milliseconds(0), now, true);
  const CreateReply body = reply_to(birth, record, valid);
  const uint64_t ino = birth.ino;
  push(std::move(birth));
  reply(head, body);
  return ino;
}

}  // namespace braidfs::names
