// Flags of an opened file that pyfuse3 cannot set, added to its answer to OPEN or CREATE. Pure.
#pragma once
#include <cstddef>
#include <span>

#include "fuse/slot_table.h"

namespace braidfs::fuse {

// An O_DIRECT handle is FOPEN_DIRECT_IO too: otherwise the kernel makes even its synchronous reads
// background requests, whose callers cannot be interrupted, not even killed. A read-only handle
// needs no FLUSH at close (rule 5: no lock is served yet, so no inode ever saw
// one), and direct handles may have several writers at a time.
void improve_open_reply(const Upcall& upcall, std::span<std::byte> reply) noexcept;

}  // namespace braidfs::fuse
