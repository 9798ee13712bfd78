#include "client/opened_fetch.h"

#include <cerrno>
#include <mutex>
#include <utility>

#include "client/announced_files.h"

namespace braidfs::client {

namespace {

// False also of a probe, which is left as ever (whole_reads.h).
bool is_to_be_fetched(WholeReads& whole_reads, Inode& inode, uint64_t& size) {
  const std::scoped_lock lock(inode.mu());
  size = inode.size();
  const bool is_small = size > 0 && size <= Announced::kFileMax;
  if (inode.handles != 1 || !is_small) return false;
  if (!whole_reads.fetches()) {
    inode.is_probe = true;
    inode.probed_bytes = 0;
    return false;
  }
  return inode.is_fetching = true;
}

}  // namespace

bool OpenedFetch::start(Lane& lane, const HandlePtr& handle, const fuse::RequestHead& head) {
  uint64_t size = 0;
  if (!is_to_be_fetched(lane.context().prefetched().whole_reads(), *handle->inode, size))
    return false;
  const auto self = lane.opened_fetches().take();
  self->rearm(head);
  self->fetch_.begin(handle->inode, 0, static_cast<uint32_t>(size));
  self->fetch_.ask_once();  // nobody waits for a server in open(2) who would not in read(2)
  self->fh_ = handle->fh;
  self->registered_ = false;
  self->proceed(lane);
  return true;
}

void OpenedFetch::about_to_wait(Lane& lane) {
  if (std::exchange(registered_, true)) return;
  lane.context().waiting().put(head().unique, shared_from_this());
}

void OpenedFetch::proceed(Lane& lane) {
  if (is_answered()) return fetched(lane, EINTR);
  if (fetch_.looks_and_waits(lane)) return;
  if (fetch_.error() != 0) return fetched(lane, fetch_.error());
  if (fetch_.length() == 0 || fetch_.stamp() == 0) return fetched(lane, 0);
  about_to_wait(lane);
  if (!fetch_.take_buffer(lane.context())) return fetched(lane, ENOMEM);
  switch (fetch_.lies_inline() ? Announced::Found::kNo
                               : find_announced(lane, fetch_, shared_from_this())) {
    case Announced::Found::kNo:
      return fetch_.ask(lane);
    case Announced::Found::kWait:
      return;
    case Announced::Found::kYes:
      fetched(lane, 0);
      fetch_announced(lane);
  }
}

void OpenedFetch::fetched(Lane& lane, int error) {
  Context& context = lane.context();
  fetch_.waits_no_more();
  if (registered_) context.waiting().drop(head().unique);
  const bool is_right = error == 0 && fetch_.is_whole() && fetch_.stamp() != 0 && fetch_.buffer();
  const bool is_mine = claim();  // else the kernel has the handle, and may have READs under way
  const uint64_t stamp = is_right && is_mine ? fetch_.stamp() : 0;
  const auto bytes = stamp != 0 ? fetch_.bytes() : std::span<std::byte>{};
  const bool stored = context.kernel().store_pages(*fetch_.inode(), stamp, head().nodeid, bytes);
  if (is_mine) context.kernel().replier().reply_open(head().channel, head().unique, fh_, stored);
  if (is_right) fetch_.offer_to_cache(context);
  fetch_.end();
  lane.room();
}

bool OpenedFetch::answered_early(Context& context) {
  context.kernel().replier().reply_open(head().channel, head().unique, fh_, false);
  return true;
}

}  // namespace braidfs::client
