#include "client/leases.h"

#include <algorithm>
#include <mutex>

namespace braidfs::client {

void Leases::ask(const InodePtr& inode, Inode::Waiter waiter, uint64_t& request) {
  const std::scoped_lock lock(inode->mu());
  Inode::Asking& asking = inode->asking;
  request = asking.begun + 1;
  const uint64_t at_end = inode->size() + (waiter.end - waiter.begin);  // if it is an append
  const uint64_t end = std::max(waiter.end, at_end);
  asking.waiting.push_back(std::move(waiter));
  if (asking.is_under_way()) return;
  ++asking.begun;
  events_.put({.kind = EventKind::kAsk, .ino = inode->ino(), .a = static_cast<int64_t>(end)});
}

std::vector<Inode::Waiter> Leases::answered(Inode& inode, int error) {
  const std::scoped_lock lock(inode.mu());
  inode.asking.error = error;
  inode.asking.ended = inode.asking.begun;
  if (const auto answer = std::exchange(inode.asking.inline_answer, nullptr)) answer->error = error;
  return inode.take_asking();
}

Leases::Change Leases::put(Inode& inode, uint32_t flags, uint32_t recalling) {
  Change change;
  const std::scoped_lock lock(inode.mu());
  inode.lease = flags;
  inode.recalling = recalling;
  change.loses_cut = ((flags | recalling) & kLeaseDataExclusive) == 0 && inode.cuts.unreported();
  if ((flags & kLeaseData) == 0) inode.forget_stamp();
  // Others may write there from now on: what targets lose is not sent again. A file that was closed
  // has held pieces under a shared lease, and nobody drains them when that is returned.
  if (((flags | recalling) & kLeaseData) == 0) inode.pieces().drop_all_held(change.actions);
  if (recalling != 0) change.waiting = inode.take_asking();
  change.goes_on = std::exchange(inode.used_during_recall, !change.waiting.empty());
  // What a target lost is being sent again, which has begun under a lease that is gone now.
  change.goes_on |= (flags & kLeaseData) == 0 && inode.pieces().unacknowledged() != 0;
  return change;
}

std::vector<std::pair<uint64_t, uint64_t>> Leases::waiting_ranges(Inode& inode) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  const std::scoped_lock lock(inode.mu());
  for (const Inode::Waiter& waiter : inode.asking.waiting)
    ranges.emplace_back(waiter.begin, waiter.end);
  return ranges;
}

}  // namespace braidfs::client
