// Lane: a mount of a sealed tree (docs/decisions/0033-sealed-mounts.md). OPEN and FLUSH are
// answered ENOSYS, after which the kernel sends no more of them and serves what it has cached by
// itself. A READ has no handle then: the NameHandler or Python opens its file for it, and it is
// closed after the answer.
#include "fuse/lane.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

bool Lane::refused_when_sealed(const RequestHead& head, uint32_t opcode) {
  if (!parts_.sealed || (opcode != FUSE_OPEN && opcode != FUSE_FLUSH)) return false;
  parts_.channels.reply_error(context_.index, head.unique, ENOSYS);
  return true;
}

// opened: the handle from Python, then the request's body.
void Lane::read_again(const RequestHead& head, std::span<const std::byte> opened) {
  const auto fh = load<uint64_t>(opened);
  const auto in = fh ? load<fuse_read_in>(opened.subspan(sizeof(*fh))) : std::nullopt;
  if (!in) return parts_.channels.reply_error(context_.index, head.unique, EIO);
  parts_.data.read(context_, {.head = head,
                              .fh = *fh,
                              .offset = in->offset,
                              .size = in->size,
                              .open_flags = in->flags,
                              .read_flags = in->read_flags,
                              .lock_owner = in->lock_owner,
                              .closes = true});
}

}  // namespace braidfs::fuse
