#include "client/cutting.h"

#include <fcntl.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "client/lanes.h"
#include "client/pieces.h"

namespace braidfs::client {

bool cut_file(Lane& lane, const HandlePtr& handle, const fuse::CutRequest& request) {
  Context& context = lane.context();
  if (!handle || handle->inode->ino() != request.ino || !context.leases().count()) return false;
  if ((handle->open_flags & O_ACCMODE) == O_RDONLY || (handle->open_flags & O_DSYNC) != 0)
    return false;
  const InodePtr inode = handle->inode;
  auto actions = std::make_shared<Actions>();
  bool watch;
  {
    const std::scoped_lock lock(inode->mu());
    if (!context.leases().holds(*inode, kLeaseDataExclusive) || !inode->may_be_cut(request.size))
      return false;
    inode->cut(request.size, request.time_ns, lane.loop().now(), *actions);
    context.commits().note_unclean(*inode);
    watch = inode->cuts.pending != Cuts::kNone && !std::exchange(inode->watched, true);
  }
  lane.counters().cuts.fetch_add(1, std::memory_order_relaxed);
  if (watch) lane.watch_age(inode);
  // The actions run later: the caller holds locks of tables, which they might take, too.
  if (!actions->empty())
    lane.post([inode, actions](Lane& at) { run_actions(at, inode, *actions); });
  return true;
}

bool cut_done(Context& context, uint64_t ino, const CutAnswer& answer) {
  const InodePtr inode = context.inodes().find(ino);
  if (!inode) return false;
  const auto decoded = decode_attributes(answer.attributes);
  auto view = decode_view(answer.layout, answer.capability);
  auto actions = std::make_shared<Actions>();
  bool watch;
  {
    const std::scoped_lock lock(inode->mu());
    if (inode->cuts.number != answer.number || inode->cuts.under_way == Cuts::kNone)
      return false;  // it was lost meanwhile
    const bool is_answered = answer.status == Status::kOk && decoded && view;
    if (is_answered) {
      inode->cut_reported(*decoded, std::move(*view), *actions);
    } else {
      const int error = answer.status == Status::kOk ? EIO : errno_of(answer.status);
      inode->cut_failed(error, Clock::now(), *actions);
    }
    watch = inode->cuts.unreported() && !std::exchange(inode->watched, true);
  }
  context.lanes().of(ino).post([inode, actions, watch](Lane& at) {
    if (watch) at.watch_age(inode);
    run_actions(at, inode, *actions);
    at.context().inodes().idle(inode);
  });
  return true;
}

}  // namespace braidfs::client
