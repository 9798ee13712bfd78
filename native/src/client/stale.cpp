#include "client/stale.h"

#include <algorithm>
#include <utility>

#include "client/context.h"

namespace braidfs::client {

Stale stale_after(Context& context, Inode& inode, const WriteReach& reach, uint32_t kill,
                  bool grew) {
  Stale stale;
  if (!reach.past_pages) return stale;
  if (inode.takes_filled(reach.begin, reach.end))
    stale.length = reach.end - (stale.begin = reach.begin);
  if (kill != 0) stale.mode = std::exchange(inode.set_ids, {}).mode != 0;
  if (!grew || reach.end <= inode.cut_end || context.kernel().eof_pages() == nullptr) return stale;
  stale.cut = {std::exchange(inode.cut_end, Inode::kNotCut),
               context.kernel().eof_pages()->begin(inode.ino())};
  context.kernel().eof_pages()->cut(inode.ino(), stale.cut.read, stale.cut.end);
  return stale;
}

void forget(Context& context, uint64_t ino, const Stale& stale, std::function<void()> then) {
  if (stale.cut.read != 0) {
    const uint64_t begin = stale.length != 0 ? std::min(stale.begin, stale.cut.end) : stale.cut.end;
    return context.kernel().invalidate_pages(ino, begin, 0, stale.cut.read, std::move(then));
  }
  if (stale.length != 0)
    return context.kernel().invalidate_pages(ino, stale.begin, stale.length, 0, std::move(then));
  context.kernel().forget_attributes(ino, std::move(then));
}

}  // namespace braidfs::client
