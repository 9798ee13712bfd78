#include "fuse/parse.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "braidfs/limits.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

using Bytes = std::span<const std::byte>;

// The form of a request that goes to Python: a fixed part, then so many strings that end in NUL.
struct UpcallShape {
  uint32_t opcode;
  uint16_t fixed;
  uint8_t names;
  bool is_call = false;
};

constexpr std::array kUpcallShapes = {
    UpcallShape{FUSE_LOOKUP, 0, 1},
    UpcallShape{FUSE_GETATTR, sizeof(fuse_getattr_in), 0},
    UpcallShape{FUSE_SETATTR, sizeof(fuse_setattr_in), 0},
    UpcallShape{FUSE_READLINK, 0, 0},
    UpcallShape{FUSE_SYMLINK, 0, 2},
    UpcallShape{FUSE_MKNOD, sizeof(fuse_mknod_in), 1},
    UpcallShape{FUSE_MKDIR, sizeof(fuse_mkdir_in), 1},
    UpcallShape{FUSE_UNLINK, 0, 1},
    UpcallShape{FUSE_RMDIR, 0, 1},
    UpcallShape{FUSE_RENAME, sizeof(fuse_rename_in), 2},
    UpcallShape{FUSE_LINK, sizeof(fuse_link_in), 1},
    UpcallShape{FUSE_OPEN, sizeof(fuse_open_in), 0},
    UpcallShape{FUSE_STATFS, 0, 0},
    UpcallShape{FUSE_SETXATTR, FUSE_COMPAT_SETXATTR_IN_SIZE, 1},
    UpcallShape{FUSE_GETXATTR, sizeof(fuse_getxattr_in), 1},
    UpcallShape{FUSE_LISTXATTR, sizeof(fuse_getxattr_in), 0},
    UpcallShape{FUSE_REMOVEXATTR, 0, 1},
    UpcallShape{FUSE_OPENDIR, sizeof(fuse_open_in), 0},
    UpcallShape{FUSE_RELEASEDIR, sizeof(fuse_release_in), 0},
    UpcallShape{FUSE_FSYNCDIR, sizeof(fuse_fsync_in), 0},
    UpcallShape{FUSE_ACCESS, sizeof(fuse_access_in), 0},
    UpcallShape{FUSE_CREATE, sizeof(fuse_create_in), 1},
    UpcallShape{FUSE_RENAME2, sizeof(fuse_rename2_in), 2},
    UpcallShape{FUSE_READDIRPLUS, sizeof(fuse_read_in), 0, true},
    UpcallShape{FUSE_GETLK, sizeof(fuse_lk_in), 0, true},
    UpcallShape{FUSE_SETLK, sizeof(fuse_lk_in), 0, true},
    UpcallShape{FUSE_SETLKW, sizeof(fuse_lk_in), 0, true},
    UpcallShape{FUSE_IOCTL, sizeof(fuse_ioctl_in), 0, true},
    UpcallShape{FUSE_FALLOCATE, sizeof(fuse_fallocate_in), 0, true},
    UpcallShape{FUSE_COPY_FILE_RANGE, sizeof(fuse_copy_file_range_in), 0, true},
    UpcallShape{FUSE_LSEEK, sizeof(fuse_lseek_in), 0, true},
    UpcallShape{FUSE_SYNCFS, sizeof(fuse_syncfs_in), 0, true},
    UpcallShape{FUSE_TMPFILE, sizeof(fuse_create_in), 1, true},
    UpcallShape{kOpStatx, kStatxInSize, 0, true},
};

// The longest request with this opcode that goes to Python: an ioctl may have an announcement.
size_t bytes_max(const UpcallShape& shape) noexcept {
  constexpr size_t kCallBytesMax = 4096;
  if (!shape.is_call) return kUpcallBytesMax;
  return shape.opcode == FUSE_IOCTL ? kCallBytesMax + kAnnounceSize : kCallBytesMax;
}

// Removes `count` strings from the front. False when one of them has no NUL.
bool drop_names(Bytes& bytes, unsigned count) noexcept {
  for (; count > 0; --count) {
    const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
    if (end == bytes.end()) return false;
    bytes = bytes.subspan(static_cast<size_t>(end - bytes.begin()) + 1);
  }
  return true;
}

bool fits(const UpcallShape& shape, Bytes body) noexcept {
  if (body.size() < shape.fixed) return false;
  Bytes rest = body.subspan(shape.fixed);
  if (!drop_names(rest, shape.names)) return false;
  if (shape.opcode != FUSE_SETXATTR) return true;
  const auto size = load<uint32_t>(body);  // of the value, behind the name
  return size && rest.size() >= *size;
}

uint32_t open_bits(uint32_t open_flags, uint32_t kill_flags) noexcept {
  uint32_t bits = (kill_flags & kOpenKillSuidgid) != 0 ? kUpcallKillSuidgid : 0;
  if ((open_flags & O_ACCMODE) == O_RDONLY) bits |= kUpcallOpenReadOnly;
  if ((open_flags & O_DIRECT) != 0) bits |= kUpcallOpenDirect;
  return bits;
}

// The kernel may set nothing and only clear set-ID bits: before a buffered write, and at a chown
// that leaves both owners as they are. (It drops ATTR_KILL_* and sends the rest: fs/fuse/dir.c.)
bool takes_set_ids(uint32_t valid) noexcept {
  constexpr uint32_t kSetsNothing = FATTR_FH | FATTR_LOCKOWNER;
  return (valid & kFattrKillSuidgid) != 0 || (valid & ~kSetsNothing) == 0;
}

bool sets_times(uint32_t valid) noexcept {
  constexpr uint32_t kNow = FATTR_ATIME_NOW | FATTR_MTIME_NOW;
  return (valid & (FATTR_ATIME | FATTR_MTIME)) != 0 && (valid & kNow) != kNow &&
         (valid & FATTR_SIZE) == 0;
}

uint32_t bits_of(uint32_t opcode, Bytes body) noexcept {
  if (opcode == FUSE_SETATTR) {
    const auto in = load<fuse_setattr_in>(body);
    if (!in) return 0;
    return (takes_set_ids(in->valid) ? kUpcallKillSuidgid : 0) |
           (sets_times(in->valid) ? kUpcallSetsTimes : 0);
  }
  if (opcode == FUSE_OPEN) {
    const auto in = load<fuse_open_in>(body);
    return in ? open_bits(in->flags, in->open_flags) : 0;
  }
  if (opcode == FUSE_CREATE || opcode == FUSE_TMPFILE) {
    const auto in = load<fuse_create_in>(body);
    return in ? open_bits(in->flags, in->open_flags) : 0;
  }
  return 0;
}

Request refuse(const RequestHead& head, int error) noexcept {
  return AnsweredRequest{head.unique, error};
}

bool in_file_range(uint64_t offset, uint64_t size) noexcept {
  constexpr uint64_t kEnd = std::numeric_limits<int64_t>::max();
  return offset <= kEnd && size <= kEnd - offset;
}

Request parse_read(const RequestHead& head, Bytes body, uint32_t max_write) noexcept {
  const auto in = load<fuse_read_in>(body);
  if (!in || in->size > max_write || !in_file_range(in->offset, in->size)) {
    return refuse(head, EINVAL);
  }
  return ReadRequest{head, in->fh, in->offset, in->size, in->flags, in->read_flags, in->lock_owner};
}

Request parse_write(const RequestHead& head, Bytes body, uint32_t max_write, Bytes apart) noexcept {
  const auto in = load<fuse_write_in>(body);
  if (!in) return refuse(head, EINVAL);
  const Bytes payload = apart.empty() ? body.subspan(sizeof(*in)) : apart;
  if (in->size > max_write || in->size != payload.size()) return refuse(head, EINVAL);
  if (!in_file_range(in->offset, in->size)) return refuse(head, EFBIG);
  return WriteRequest{head,           in->fh, in->offset, in->flags, in->write_flags,
                      in->lock_owner, payload};
}

Request parse_flush(const RequestHead& head, Bytes body) noexcept {
  const auto in = load<fuse_flush_in>(body);
  if (!in) return refuse(head, EINVAL);
  return FlushRequest{head, in->fh, in->lock_owner};
}

Request parse_release(const RequestHead& head, Bytes body) noexcept {
  const auto in = load<fuse_release_in>(body);
  if (!in) return refuse(head, EINVAL);
  return ReleaseRequest{head, in->fh, in->flags, in->release_flags, in->lock_owner};
}

Request parse_fsync(const RequestHead& head, Bytes body) noexcept {
  const auto in = load<fuse_fsync_in>(body);
  if (!in) return refuse(head, EINVAL);
  return FsyncRequest{head, in->fh, (in->fsync_flags & FUSE_FSYNC_FDATASYNC) != 0};
}

Request parse_forget(const RequestHead& head, Bytes body) noexcept {
  const auto in = load<fuse_forget_in>(body);
  if (!in) return Malformed{};
  return ForgetRequest{head.nodeid, in->nlookup, {}};
}

Request parse_batch_forget(Bytes body) noexcept {
  const auto in = load<fuse_batch_forget_in>(body);
  if (!in) return Malformed{};
  const Bytes entries = body.subspan(sizeof(*in));
  if (in->count == 0 || in->count > entries.size() / sizeof(fuse_forget_one)) return Malformed{};
  return ForgetRequest{0, 0, entries.first(in->count * sizeof(fuse_forget_one))};
}

Request parse_interrupt(const RequestHead& head, Bytes body) noexcept {
  const auto in = load<fuse_interrupt_in>(body);
  if (!in) return Malformed{};
  return InterruptRequest{head.unique, in->unique};
}

// 0 for an ioctl that goes to Python, else ENOTTY or EINVAL.
int check_ioctl(Bytes body) noexcept {
  const auto in = load<fuse_ioctl_in>(body);
  if (!in || in->in_size > body.size() - sizeof(*in)) return EINVAL;
  for (const uint32_t known :
       {kIoctlGetFlags, kIoctlSetFlags, kIoctlGetXattr, kIoctlSetXattr, kIoctlAnnounce}) {
    if (in->cmd == known) return 0;
  }
  return ENOTTY;
}

// 0 for a copy that goes to Python. EOPNOTSUPP, after which the kernel copies by itself, for a
// short one and for one of other than whole blocks (fsclient/fs/copies.py).
int check_copy(Bytes body) noexcept {
  const auto in = load<fuse_copy_file_range_in>(body);
  if (!in) return EINVAL;
  const bool blocks = (in->off_in | in->off_out) % limits::kBlockSize == 0;
  return blocks && in->len >= limits::kCopyLengthMin ? 0 : EOPNOTSUPP;
}

Request parse_upcall(const RequestHead& head, uint32_t opcode, Bytes bytes, Bytes body) noexcept {
  const auto shape = std::find_if(kUpcallShapes.begin(), kUpcallShapes.end(),
                                  [&](const UpcallShape& known) { return known.opcode == opcode; });
  if (shape == kUpcallShapes.end()) return refuse(head, ENOSYS);
  if (!fits(*shape, body)) return refuse(head, EINVAL);
  if (bytes.size() > bytes_max(*shape)) return refuse(head, E2BIG);
  if (opcode == FUSE_IOCTL) {
    const int refused = check_ioctl(body);
    if (refused != 0) return refuse(head, refused);
  }
  if (opcode == FUSE_COPY_FILE_RANGE) {
    const int refused = check_copy(body);
    if (refused != 0) return refuse(head, refused);
  }
  return UpcallRequest{head, opcode, bits_of(opcode, body), bytes, shape->is_call};
}

}  // namespace

Request parse_request(Channel channel, Bytes bytes, uint32_t max_write, Bytes payload) noexcept {
  const auto in = load<fuse_in_header>(bytes);
  if (!in || in->len != bytes.size() + payload.size()) return Malformed{};
  if (!payload.empty() && (in->opcode != FUSE_WRITE || bytes.size() != kWriteHeadSize))
    return Malformed{};
  const RequestHead head{channel, in->unique, in->nodeid, in->uid, in->gid, in->pid};
  const Bytes body = bytes.subspan(sizeof(*in));
  switch (in->opcode) {
    case FUSE_READ:
      return parse_read(head, body, max_write);
    case FUSE_WRITE:
      return parse_write(head, body, max_write, payload);
    case FUSE_FLUSH:
      return parse_flush(head, body);
    case FUSE_RELEASE:
      return parse_release(head, body);
    case FUSE_FSYNC:
      return parse_fsync(head, body);
    case FUSE_FORGET:
      return parse_forget(head, body);
    case FUSE_BATCH_FORGET:
      return parse_batch_forget(body);
    case FUSE_INTERRUPT:
      return parse_interrupt(head, body);
    case FUSE_DESTROY:
      return refuse(head, 0);
    case FUSE_INIT:
      return refuse(head, EIO);  // only the first request may be an INIT (session.cpp)
    case FUSE_NOTIFY_REPLY:
      return Malformed{};  // nothing is ever retrieved, and it needs no answer
    default:
      return parse_upcall(head, in->opcode, bytes, body);
  }
}

}  // namespace braidfs::fuse
