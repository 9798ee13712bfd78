// What of the kernel's is wrong after a WRITE, and is forgotten before the writer is answered.
#pragma once
#include <cstdint>
#include <functional>

#include "client/inode.h"

namespace braidfs::client {

class Context;

// What a WRITE covers. past_pages: it came by a handle that goes past the kernel's pages, and is
// not itself the write-back of one of them: the kernel waits for that one's answer while it is
// asked to forget the page.
struct WriteReach {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool past_pages = false;
};

// Pages that end where the file did, and the number of their READs in fuse/eof_pages.h.
struct CutPages {
  uint64_t end = Inode::kNotCut;
  uint64_t read = 0;
};

struct Stale {
  CutPages cut;
  bool mode = false;   // has set-id bits that are gone
  uint64_t begin = 0;  // of pages with bytes of before
  uint64_t length = 0;
  explicit operator bool() const noexcept { return cut.read != 0 || mode || length != 0; }
};

// LOCKED inode. A direct WRITE leaves what the kernel has as it is: pages that were filled while it
// was on its way; a page that has zeros behind the former end, which is to be invalidated before
// anybody is told the new one; and the mode. (Before any other one the kernel asks for set-id bits
// to go.) kill: kCommitKill*.
Stale stale_after(Context& context, Inode& inode, const WriteReach& reach, uint32_t kill,
                  bool grew);

// `then` is called when the kernel has forgotten it. An invalidation of pages is one of the
// attributes, too.
void forget(Context& context, uint64_t ino, const Stale& stale, std::function<void()> then = {});

}  // namespace braidfs::client
