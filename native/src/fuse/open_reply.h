// Flags of an opened file that pyfuse3 cannot set, added to its answer to OPEN or CREATE. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "fuse/protocol.h"
#include "fuse/request.h"
#include "fuse/slot_table.h"

namespace braidfs::fuse {

// An O_DIRECT handle is FOPEN_DIRECT_IO too: otherwise the kernel makes even its synchronous reads
// background requests, whose callers cannot be interrupted, not even killed. A read-only handle
// needs no FLUSH at close (rule 5: no lock is served yet, so no inode ever saw
// one), and direct handles may have several writers at a time.
void improve_open_reply(const Upcall& upcall, std::span<std::byte> reply) noexcept;

// Of an OPEN for reading that lanes answer.
fuse_open_out opened(uint64_t fh, bool keeps_pages) noexcept;

// Tells the kernel to read by itself with this handle. Flags that the kernel does not take beside
// it go.
void pass_through(fuse_open_out& out, uint32_t backing) noexcept;

// The same of Python's answer to an OPEN: asks how that file is read. Returns what is to be sent,
// in the place of the reply.
using Pass = std::function<Passing(uint64_t nodeid, uint64_t fh)>;
std::span<std::byte> pass_reply(const Upcall& upcall, std::span<std::byte> reply, const Pass& pass);

}  // namespace braidfs::fuse
