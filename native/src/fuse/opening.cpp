// Lane: OPENs that it answers itself, and how the kernel reads with their handles.
#include <fcntl.h>

#include <cerrno>
#include <span>

#include "fuse/lane.h"
#include "fuse/open_reply.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

// For reading, of a file that Python keeps open or that is known by its directory's grant: its
// bytes are leased, so the kernel's pages are right if they are from since then.
bool Lane::open_answered(const UpcallRequest& request, uint64_t ino) {
  const auto in = load<fuse_open_in>(request.bytes.subspan(sizeof(fuse_in_header)));
  if (!in || (in->flags & O_ACCMODE) != O_RDONLY || (in->flags & (O_TRUNC | O_DIRECT)) != 0)
    return false;
  if (parts_.closing.holds(request.head.nodeid)) return false;
  const uint64_t fh = parts_.births.next_handle();
  Opening opening = parts_.data.open(ino, fh, in->flags);
  if (opening == Opening::kRefused) opening = open_child(ino, fh, in->flags);
  if (opening == Opening::kRefused) return false;
  const bool may_be_fetched = opening == Opening::kDropsPages && !parts_.passes;
  if (may_be_fetched && parts_.data.fetch_opened(context_, request.head, fh)) return true;
  fuse_open_out out = opened(fh, opening == Opening::kKeepsPages);
  if (parts_.passes) {
    const Passing passing =
        parts_.data.pass(ino, fh, known().sealing(ino, AttributeTable::Clock::now()));
    if (passing.way == Passing::Way::kByItself) pass_through(out, passing.backing);
    if (passing.way == Passing::Way::kAsk) return false;
    if (passing.way == Passing::Way::kStale) {
      parts_.channels.reply_error(context_.index, request.head.unique, ESTALE);
      return true;
    }
  }
  parts_.channels.reply_body(context_.index, request.head.unique,
                             std::as_bytes(std::span(&out, 1)));
  return true;
}

Opening Lane::open_child(uint64_t ino, uint64_t fh, uint32_t open_flags) {
  Opening opening = Opening::kRefused;
  parts_.children.find(ino, AttributeTable::Clock::now(), [&](ChildTable::Child& child) {
    if (!parts_.data.open_granted(child.attributes, std::as_bytes(std::span(child.layout)),
                                  std::as_bytes(std::span(child.capability)), fh, open_flags)) {
      return false;
    }
    opening = parts_.children.mark_opened(child) ? Opening::kKeepsPages : Opening::kDropsPages;
    return true;
  });
  return opening;
}

}  // namespace braidfs::fuse
