// Lane: a mount of a sealed tree (docs/decisions/0033-sealed-mounts.md). The kernel is told that
// nobody need be asked for OPEN and FLUSH (ENOSYS, after which it asks no more): what it has cached
// it serves by itself. A READ names no handle then: its file is opened for it, by a lane where that
// needs nobody's leave, and closed when it was answered.
#include <fcntl.h>

#include "fuse/lane.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

bool Lane::refused_when_sealed(const RequestHead& head, uint32_t opcode) {
  if (!parts_.sealed || (opcode != FUSE_OPEN && opcode != FUSE_FLUSH)) return false;
  parts_.channels.reply_error(context_.index, head.unique, ENOSYS);
  return true;
}

// False: it is Python's.
bool Lane::read_unopened(const ReadRequest& request) {
  const uint64_t ino = request.head.nodeid;  // a file, so not the root
  ReadRequest opened = request;
  opened.fh = parts_.births.next_handle();
  opened.closes = true;
  if (parts_.data.open(ino, opened.fh, O_RDONLY) == Opening::kRefused &&
      !open_sealed_child(ino, opened.fh)) {
    return false;
  }
  parts_.data.read(context_, opened);
  return true;
}

bool Lane::open_sealed_child(uint64_t ino, uint64_t fh) {
  return parts_.children.find(
      ino, AttributeTable::Clock::now(), [&](const ChildTable::Child& child) {
        return record::is_immutable(child.attributes) &&
               parts_.data.open_granted(child.attributes, std::as_bytes(std::span(child.layout)),
                                        std::as_bytes(std::span(child.capability)), fh, O_RDONLY);
      });
}

// opened: the handle that Python gave it, and the request's body.
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
