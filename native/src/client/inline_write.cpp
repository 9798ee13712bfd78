// The part of AskingWrite for a file that lies in its inode's record and is to stay there: the
// WRITE costs one transaction of the metaserver and no request to a storage server
// (docs/decisions/0037-inline-data.md). Invariant: the record is changed before the WRITE is
// answered, so this client never has the only copy of the bytes.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "client/context.h"
#include "client/set_ids.h"
#include "client/stale.h"
#include "client/write.h"
#include "core/file_time.h"

namespace braidfs::client {

namespace {

struct Head {
  uint64_t file_id;
  uint32_t flags;
  uint32_t durable;
};

std::string payload_of(const Head& head, std::span<const std::byte> bytes) {
  std::string payload(sizeof(head) + bytes.size(), '\0');
  std::memcpy(payload.data(), &head, sizeof(head));
  std::memcpy(payload.data() + sizeof(head), bytes.data(), bytes.size());
  return payload;
}

// Whether the file may stay in its record with these bytes. Under the exclusive lease the lanes
// know everything of the file. A page that the kernel writes back is excluded, since it may have
// bytes of other writers. LOCKED inode.
bool may_lie_on(Context& context, const Inode& inode, const fuse::WriteRequest& request) {
  if (inode.is_handing_over() || inode.view_locked()->inline_bytes.empty() ||
      !context.leases().count())
    return false;
  if (!context.leases().holds(inode, kLeaseDataExclusive) ||
      (request.write_flags & fuse::kWriteFromCache) != 0)
    return false;
  if (inode.inline_writes >= AskingWrite::kInlineWritesMax) return false;
  const uint64_t begin = appends(request) ? inode.size() : request.offset;
  const uint64_t most = context.commits().inline_length_max();
  if (begin > most || request.payload.size() > most - begin) return false;
  const uint64_t end = begin + request.payload.size();
  return end <= inode.size() || end <= inode.size_limit.load(std::memory_order_relaxed);
}

}  // namespace

// False: a lease request without the bytes is needed.
bool AskingWrite::ask_with_bytes(Context& context) {
  Inode& inode = *handle_->inode;
  Inode::SetIds set_ids;
  Head head{};
  uint64_t placed;
  {
    const std::scoped_lock lock(inode.mu());
    Inode::Asking& asking = inode.asking;
    if (needs_objects_ || asking.is_under_way() || !may_lie_on(context, inode, request_))
      return false;
    placed = std::exchange(request_.offset, appends(request_) ? inode.size() : request_.offset);
    grew_ = request_.offset + payload_.size() > inode.size();
    asking.inline_answer = answer_ = std::make_shared<Inode::InlineAnswer>();
    lease_request_ = ++asking.begun;
    asking.waiting.push_back(waiter());
    ++inode.inline_writes;
    head.file_id = inode.view_locked()->file_id;
    set_ids = inode.set_ids;
  }
  if (placed != request_.offset && !handle_->goes_past_pages())
    context.kernel().invalidate_pages(inode.ino(), 0, 0);
  kill_ = kill_flags(request_, set_ids);
  head.flags = kill_;
  head.durable = ((request_.open_flags | handle_->open_flags) & O_DSYNC) != 0 ? 1 : 0;
  context.events().put({.kind = EventKind::kWriteInline,
                        .ino = inode.ino(),
                        .a = static_cast<int64_t>(request_.offset),
                        .b = file_time_ns(),
                        .payload = payload_of(head, payload_)});
  return true;
}

void AskingWrite::inline_answered(Lane& lane) {
  Inode& inode = *handle_->inode;
  Inode::InlineAnswer answer;
  {
    const std::scoped_lock lock(inode.mu());
    answer = *answer_;
    if (!answer.error) {  // it was woken for another reason
      inode.asking.waiting.push_back(waiter());
      return;
    }
  }
  answer_.reset();
  const int error = *answer.error;
  if (error == 0) return inline_written(lane);
  needs_objects_ = error == ESTALE;
  if (needs_objects_) return ask(lane);
  lane.context().waiting().drop(head().unique);
  if (claim()) lane.context().kernel().reply_error(head(), error);
}

// The file has only one page in the kernel, so a direct WRITE makes the whole page stale.
void AskingWrite::inline_written(Lane& lane) {
  Context& context = lane.context();
  const bool past_pages = handle_->goes_past_pages();
  const WriteReach reach{request_.offset, request_.offset + payload_.size(), past_pages};
  Stale stale;
  {
    const std::scoped_lock lock(handle_->inode->mu());
    stale = stale_after(context, *handle_->inode, reach, kill_, grew_);
    if (past_pages) {
      stale.begin = 0;
      stale.length = reach.end;
    }
  }
  lane.counters().inline_writes.fetch_add(1, std::memory_order_relaxed);
  context.waiting().drop(head().unique);
  auto self = std::static_pointer_cast<AskingWrite>(shared_from_this());
  const auto answer = [self, &context] {
    if (self->claim()) {
      context.kernel().replier().reply_write(self->head().channel, self->head().unique,
                                             static_cast<uint32_t>(self->payload_.size()));
    }
  };
  if (!stale) return answer();
  forget(context, handle_->inode->ino(), stale, answer);
}

}  // namespace braidfs::client
