#include "client/read.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "client/lanes.h"
#include "client/prefetching.h"

namespace braidfs::client {

void ReadOperation::start(Lane& lane, const Handle& handle, const fuse::ReadRequest& request) {
  const auto self = lane.reads().take();
  ReadOperation& read = *self;
  read.rearm(request.head);
  read.fetch_.begin(handle.inode, request.offset, request.size);
  read.closes_ = request.closes ? request.fh : 0;
  read.request_ = read.eof_read_ = 0;
  read.ends_ = 0;
  read.registered_ = read.asked_prefetcher_ = read.passed_lanes_ = false;
  read.fills_pages_ = (request.read_flags & fuse::kReadLockOwner) == 0;
  read.proceed(lane);
}

void ReadOperation::proceed(Lane& lane) {
  if (is_answered()) return answer(lane, EINTR);
  if (ask_for_lease(lane) || waits(lane)) return;
  if (fetch_.error() != 0) return answer(lane, fetch_.error());
  if (fetch_.length() == 0) return answer(lane, 0);
  about_to_wait(lane);
  Wanted wanted;
  if (!ask_prefetcher(lane, wanted)) ask_sources(lane);
  fetch_extents(lane, wanted.inode, wanted.extents);
}

void ReadOperation::begin_again(Lane& lane) {
  request_ = 0;
  proceed(lane);
}

void ReadOperation::about_to_wait(Lane& lane) {
  if (std::exchange(registered_, true)) return;
  lane.context().waiting().put(head().unique, shared_from_this());
}

// ---- the lease ----

bool ReadOperation::ask_for_lease(Lane& lane) {
  Context& context = lane.context();
  int error = 0;
  {
    const std::scoped_lock lock(inode().mu());
    begin_near_end(context.leases());
    if (context.leases().holds(inode(), kLeaseData)) return false;
    begin_eof_pages(context);
    if ((inode().recalling & kLeaseData) != 0) {
      inode().used_during_recall = true;
      return false;
    }
    if (request_ != 0 && inode().asking.ended >= request_) {
      error = inode().asking.error;
      if (error == 0) return false;
    }
  }
  if (error != 0) {
    answer(lane, error);
    return true;
  }
  about_to_wait(lane);
  context.leases().ask(fetch_.inode(), {shared_from_this(), fetch_.offset(), end()}, request_);
  return true;
}

// ---- the file's end ----

void ReadOperation::begin_near_end(const Leases& leases) {
  if (!fills_pages_ || near_end_) return;
  near_end_ = end() > inode().size() || !leases.holds(inode(), kLeaseData);
  if (near_end_) inode().near_end.push_back(fetch_.offset());
}

// The READ lies behind the end of the file, and READs before it may report where the file ends.
// True: proceed() is called when one of them was answered.
bool ReadOperation::waits_for_end(Lane& lane) {
  if (!near_end_ || fetch_.length() != 0 || is_answered()) return false;
  about_to_wait(lane);
  if (waits_for_lanes(lane)) return true;
  const std::scoped_lock lock(inode().mu());
  const auto is_before = [this](uint64_t offset) { return offset < fetch_.offset(); };
  if (std::ranges::none_of(inode().near_end, is_before)) return false;
  inode().behind_end.push_back(shared_from_this());
  return true;
}

// The kernel gives READs away in their order, but another lane may have one that it has not begun.
bool ReadOperation::waits_for_lanes(Lane& lane) {
  if (std::exchange(passed_lanes_, true)) return false;
  return lane.context().lanes().post([](Lane&) {},
                                     [self = shared_from_this()](Lane& at) { self->proceed(at); });
}

// The READ was answered. Returns the operations that waited for that, which look again.
std::vector<std::shared_ptr<Operation>> ReadOperation::end_near_end() {
  if (!std::exchange(near_end_, false)) return {};
  const std::scoped_lock lock(inode().mu());
  inode().near_end.erase(std::ranges::find(inode().near_end, fetch_.offset()));
  return std::exchange(inode().behind_end, {});
}

void ReadOperation::begin_eof_pages(Context& context) {
  fuse::EofPages* const eof_pages = context.kernel().eof_pages();
  if (fills_pages_ && eof_read_ == 0 && eof_pages != nullptr)
    eof_read_ = eof_pages->begin(inode().ino());
}

// The answer would end where the file does not end any more, as was reported meanwhile.
bool ReadOperation::ends_elsewhere(Context& context) {
  if (eof_read_ == 0 || fetch_.file_size() >= end()) return false;
  fuse::EofPages& eof_pages = *context.kernel().eof_pages();
  return !eof_pages.cut(inode().ino(), eof_read_, fetch_.file_size()) && ends_++ < kEndsMax;
}

// ---- the bytes ----

// Notes in the inode which pages this READ fills.
void ReadOperation::note_pages() {
  if (inode().is_probe) inode().probed_bytes += fetch_.size();
  if (!fills_pages_) return;
  if (fetch_.length() != 0) inode().note_filled(fetch_.offset(), fetch_.offset() + fetch_.length());
  if (fetch_.file_size() < end()) inode().cut_end = std::min(inode().cut_end, fetch_.file_size());
}

bool ReadOperation::waits(Lane& lane) {
  Context& context = lane.context();
  Fetch::Wait wait;
  uint64_t leased_read = 0;  // it began without the lease, and gets its bytes under it
  bool has_wait = false;
  {
    std::unique_lock lock(inode().mu());
    if (context.leases().holds(inode(), kLeaseData)) {
      leased_read = std::exchange(eof_read_, 0);
    } else {
      begin_eof_pages(context);
    }
    fetch_.look(context);
    note_pages();
    if (ends_elsewhere(context)) {
      lock.unlock();
      begin_again(lane);
      return true;
    }
    has_wait = fetch_.waits(lane, wait);
  }
  if (leased_read != 0) context.kernel().end_eof_read(inode().ino(), leased_read);
  if (has_wait) wait.act(lane);
  return has_wait;
}

// True: the READ was answered, or proceed() will be called. The caller begins the `wanted` extents
// afterwards.
bool ReadOperation::ask_prefetcher(Lane& lane, Wanted& wanted) {
  using prefetch::For;
  using prefetch::Found;
  prefetch::Prefetcher& prefetcher = lane.context().prefetcher();
  const CachedExtent extent = fetch_.extent();
  const auto whom = fills_pages_ ? For::kPages : For::kProgram;
  if (fetch_.lies_inline() || !prefetcher.watches(extent, whom)) return false;
  wanted.inode = fetch_.inode();  // the READ may be answered before the prefetches begin
  const bool only_looks = std::exchange(asked_prefetcher_, true);
  const auto found = prefetcher.read({extent, whom, only_looks, lane.loop().now()}, parts_,
                                     shared_from_this(), wanted.extents);
  if (found != Found::kYes) return found == Found::kWait;
  answer(lane, 0);
  fetch_announced(lane);
  return true;
}

void ReadOperation::ask_sources(Lane& lane) {
  if (!fetch_.take_buffer(lane.context())) return lane.when_room(shared_from_this());
  fetch_.ask(lane);
}

// ---- the answer ----

// Copies the bytes into one buffer if there is a local cache, which takes only one. False: there is
// no memory for that.
bool ReadOperation::in_one_buffer(Lane& lane) {
  if (parts_.empty() || lane.context().local_cache() == nullptr) return true;
  return fetch_.take_parts(lane.context(), parts_);
}

void ReadOperation::reply(Context& context) {
  fuse::Replier& replier = context.kernel().replier();
  if (parts_.empty()) {
    const bool has_bytes = fetch_.length() > 0;
    const iovec piece{has_bytes ? fetch_.bytes().data() : nullptr, fetch_.length()};
    return replier.reply_data(head().channel, head().unique, std::span(&piece, has_bytes));
  }
  std::vector<iovec> pieces;
  for (const auto& part : parts_) pieces.push_back({part.span().data(), part.length});
  replier.reply_data(head().channel, head().unique, pieces);
}

void ReadOperation::answer(Lane& lane, int error) {
  fetch_.waits_no_more();
  if (error == 0 && waits_for_end(lane)) return;
  Context& context = lane.context();
  if (registered_) context.waiting().drop(head().unique);
  if (claim()) {
    if (error != 0) {
      context.kernel().reply_error(head(), error);
    } else {
      reply(context);
    }
  }
  const auto waited = end_near_end();
  const uint64_t ino = inode().ino(), offset = fetch_.offset(), size = fetch_.size();
  const uint64_t eof_read = std::exchange(eof_read_, 0);
  const bool has_bytes = in_one_buffer(lane);
  parts_.clear();
  if (error == 0 && fetch_.length() > 0 && has_bytes) fetch_.offer_to_cache(context);
  fetch_.end();
  if (closes_ != 0) context.open_files().close_own(std::exchange(closes_, 0));
  lane.room();
  proceed_all(lane, waited);
  // Nobody tells this client when pages that were read without a lease become wrong.
  if (eof_read != 0) context.kernel().invalidate_pages(ino, offset, size, eof_read);
}

}  // namespace braidfs::client
