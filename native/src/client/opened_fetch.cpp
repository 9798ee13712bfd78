#include "client/opened_fetch.h"

#include <cerrno>
#include <mutex>
#include <utility>

#include "client/prefetching.h"

namespace braidfs::client {

namespace {

// False also for a probe, which is not fetched (prefetch/whole_small_files.h).
bool is_to_be_fetched(prefetch::WholeSmallFiles& whole_small_files, Inode& inode, uint64_t& size) {
  using prefetch::Sink;
  const std::scoped_lock lock(inode.mu());
  size = inode.size();
  const auto sink = inode.handles == 1 ? whole_small_files.opened(size) : Sink::kNone;
  if (sink == Sink::kProbe) {
    inode.is_probe = true;
    inode.probed_bytes = 0;
  }
  if (sink == Sink::kKernelPages) inode.is_fetching = true;
  return sink == Sink::kKernelPages;
}

}  // namespace

bool OpenedFetch::start(Lane& lane, const HandlePtr& handle, const fuse::RequestHead& head) {
  uint64_t size = 0;
  if (!is_to_be_fetched(lane.context().prefetcher().whole_small_files(), *handle->inode, size))
    return false;
  const auto self = lane.opened_fetches().take();
  self->rearm(head);
  self->fetch_.begin(handle->inode, 0, static_cast<uint32_t>(size));
  self->fetch_.ask_once();  // open(2) must not wait for a server: the program may never read
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
  prefetch::Parts parts;
  switch (ask_prefetcher(lane, parts)) {
    case prefetch::Found::kNo:
      return fetch_.take_buffer(lane.context()) ? fetch_.ask(lane) : fetched(lane, ENOMEM);
    case prefetch::Found::kWait:
      return;
    case prefetch::Found::kYes:
      fetched(lane, fetch_.take_parts(lane.context(), parts) ? 0 : ENOMEM);
      fetch_announced(lane);
  }
}

prefetch::Found OpenedFetch::ask_prefetcher(Lane& lane, prefetch::Parts& parts) {
  prefetch::Prefetcher& prefetcher = lane.context().prefetcher();
  const prefetch::Prefetcher::Reading reading{.extent = fetch_.extent(),
                                              .whom = prefetch::For::kPages,
                                              .only_looks = true,
                                              .now = lane.loop().now()};
  if (fetch_.lies_inline() || !prefetcher.watches(reading.extent, reading.whom))
    return prefetch::Found::kNo;
  prefetch::Extents none;
  return prefetcher.read(reading, parts, shared_from_this(), none);
}

void OpenedFetch::fetched(Lane& lane, int error) {
  Context& context = lane.context();
  fetch_.waits_no_more();
  if (registered_) context.waiting().drop(head().unique);
  const bool is_right = error == 0 && fetch_.is_whole() && fetch_.stamp() != 0 && fetch_.buffer();
  const bool is_mine = claim();  // if not, the kernel has the handle, and may have sent READs
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
