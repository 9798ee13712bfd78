// Names: OPENs that lanes answer themselves, and how the kernel reads through their handles.
#include <fcntl.h>

#include <cerrno>

#include "fuse/open_reply.h"
#include "names/names.h"

namespace braidfs::names {

using fuse::Opening;
using fuse::PassthroughChoice;

// An OPEN for reading of a file that Python keeps open or that is known by its directory's grant.
// Its bytes are leased, so the kernel's pages are right if they were read since then.
bool Names::open(const fuse::RequestHead& head, uint32_t open_flags) {
  if ((open_flags & O_ACCMODE) != O_RDONLY || (open_flags & (O_TRUNC | O_DIRECT)) != 0)
    return false;
  const uint64_t ino = ino_of(head.nodeid);
  const uint64_t fh = journal_.next_handle();
  Opening opening = file_bytes_.open(ino, fh, open_flags);
  if (opening == Opening::kRefused) opening = open_child(ino, fh, open_flags);
  if (opening == Opening::kRefused) return false;
  const bool may_be_fetched = opening == Opening::kDropsPages && !facts_.has_passthrough;
  fuse::LaneContext lane{head.channel};
  if (may_be_fetched && file_bytes_.fetch_opened(lane, head, fh)) return true;
  fuse_open_out out = fuse::opened(fh, opening == Opening::kKeepsPages);
  if (facts_.has_passthrough) {
    const PassthroughChoice choice =
        file_bytes_.choose_passthrough(ino, fh, known().sealing(ino, Clock::now()));
    if (choice.way == PassthroughChoice::Way::kPassthrough) fuse::pass_through(out, choice.backing);
    if (choice.way == PassthroughChoice::Way::kUpcall) return false;
    if (choice.way == PassthroughChoice::Way::kStale) {
      reply_error(head, ESTALE);
      return true;
    }
  }
  reply(head, out);
  return true;
}

Opening Names::open_child(uint64_t ino, uint64_t fh, uint32_t open_flags) {
  Opening opening = Opening::kRefused;
  children_.find(ino, Clock::now(), [&](ChildTable::Child& child) {
    if (!file_bytes_.open_granted(child.attributes, std::as_bytes(std::span(child.layout)),
                                  std::as_bytes(std::span(child.capability)), fh, open_flags)) {
      return false;
    }
    opening = children_.mark_opened(child) ? Opening::kKeepsPages : Opening::kDropsPages;
    return true;
  });
  return opening;
}

bool Names::read_unopened(const fuse::ReadRequest& request) {
  const uint64_t ino = request.head.nodeid;  // it is a file, so not the root
  fuse::ReadRequest opened = request;
  opened.fh = journal_.next_handle();
  opened.closes = true;
  if (file_bytes_.open(ino, opened.fh, O_RDONLY) == Opening::kRefused &&
      !open_sealed_child(ino, opened.fh)) {
    return false;
  }
  fuse::LaneContext lane{request.head.channel};
  file_bytes_.read(lane, opened);
  return true;
}

bool Names::open_sealed_child(uint64_t ino, uint64_t fh) {
  return children_.find(ino, Clock::now(), [&](const ChildTable::Child& child) {
    return record::is_immutable(child.attributes) &&
           file_bytes_.open_granted(child.attributes, std::as_bytes(std::span(child.layout)),
                                    std::as_bytes(std::span(child.capability)), fh, O_RDONLY);
  });
}

}  // namespace braidfs::names
