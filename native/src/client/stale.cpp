#include "client/stale.h"

#include <algorithm>
#include <utility>

#include "client/core.h"

namespace braidfs::client {

Stale stale_after(Core& core, Inode& inode, const WriteReach& reach, uint32_t kill, bool grew) {
  Stale stale;
  if (!reach.past_pages) return stale;
  if (inode.takes_filled(reach.begin, reach.end))
    stale.length = reach.end - (stale.begin = reach.begin);
  if (kill != 0) stale.mode = std::exchange(inode.set_ids, {}).mode != 0;
  if (!grew || reach.end <= inode.cut_end || core.cut_reads() == nullptr) return stale;
  stale.cut = {std::exchange(inode.cut_end, Inode::kNotCut), core.cut_reads()->begin(inode.ino())};
  core.cut_reads()->cut(inode.ino(), stale.cut.read, stale.cut.end);
  return stale;
}

void forget(Core& core, uint64_t ino, const Stale& stale, std::function<void()> then) {
  if (stale.cut.read != 0) {
    const uint64_t begin = stale.length != 0 ? std::min(stale.begin, stale.cut.end) : stale.cut.end;
    return core.spoil_pages(ino, begin, 0, stale.cut.read, std::move(then));
  }
  if (stale.length != 0)
    return core.spoil_pages(ino, stale.begin, stale.length, 0, std::move(then));
  core.forget_attributes(ino, std::move(then));
}

}  // namespace braidfs::client
