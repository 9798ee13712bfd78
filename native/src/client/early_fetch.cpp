#include "client/early_fetch.h"

#include <cerrno>
#include <utility>

namespace braidfs::client {

void EarlyFetch::start(Lane& lane, const Wanted& wanted, Done done) {
  const auto self = lane.early_fetches().take();
  self->rearm({});
  self->fetch_.begin(wanted.inode, wanted.offset, wanted.size);
  self->handle_ = wanted.handle;
  self->done_ = done;
  self->proceed(lane);
}

void EarlyFetch::proceed(Lane& lane) {
  if (fetch_.looks_and_waits(lane)) return;
  if (fetch_.error() != 0) return fetched(lane, fetch_.error());
  if (fetch_.length() == 0 || fetch_.stamp() == 0) return fetched(lane, 0);
  if (!fetch_.take_buffer(lane.context())) return fetched(lane, ENOMEM);
  fetch_.ask(lane);
}

void EarlyFetch::fetched(Lane& lane, int error) {
  fetch_.waits_no_more();
  Result result{.extent = fetch_.extent(),
                .is_whole = fetch_.is_whole(),
                .handle = std::exchange(handle_, nullptr)};
  const bool is_right = error == 0 && fetch_.length() > 0 && fetch_.buffer();
  if (is_right && fetch_.is_current(lane.context())) result.bytes = std::move(fetch_.buffer());
  fetch_.end();
  done_(lane, std::move(result));
}

}  // namespace braidfs::client
