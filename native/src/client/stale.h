// What the kernel has cached and a WRITE makes wrong: pages and attributes, which the kernel must
// forget before the writer is answered.
//
// Invariant: the writer is answered after forget() has called `then`. Threads: stale_after() under
// the inode's mutex, forget() ANY THREAD. Not here: how the kernel is notified (kernel_replies.h).
#pragma once
#include <cstdint>
#include <functional>

#include "client/inode.h"

namespace braidfs::client {

class Context;

// The bytes that a WRITE covers. past_pages: it came by a handle that bypasses the kernel's pages.
// False also if the WRITE is the write-back of a page: the kernel would be asked to forget that
// page while it waits for the answer.
struct WriteReach {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool past_pages = false;
};

// EOF pages: where they end, and the number of their READs in fuse/eof_pages.h.
struct CutPages {
  uint64_t end = Inode::kNotCut;
  uint64_t read = 0;
};

struct Stale {
  CutPages cut;
  bool mode = false;   // the kernel knows a mode with set-id bits that are gone
  uint64_t begin = 0;  // of pages with former bytes
  uint64_t length = 0;
  explicit operator bool() const noexcept { return cut.read != 0 || mode || length != 0; }
};

// What a WRITE makes wrong. A direct WRITE leaves alone what the kernel has cached: pages that were
// filled while it was under way; a page with zeros behind the former end of the file, which must be
// invalidated before anybody is told the new size; and the mode. (Before other WRITEs the kernel
// itself asks to clear set-id bits.) kill: kCommitKill*. LOCKED inode.
Stale stale_after(Context& context, Inode& inode, const WriteReach& reach, uint32_t kill,
                  bool grew);

// Calls `then` when the kernel has forgotten it. An invalidation of pages also invalidates the
// attributes.
void forget(Context& context, uint64_t ino, const Stale& stale, std::function<void()> then = {});

}  // namespace braidfs::client
