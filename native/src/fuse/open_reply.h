// Sets flags of an opened file that pyfuse3 cannot set in its answer to OPEN or CREATE. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "fuse/protocol.h"
#include "fuse/request.h"
#include "fuse/slot_table.h"

namespace braidfs::fuse {

// An O_DIRECT handle gets FOPEN_DIRECT_IO, too: otherwise the kernel makes even its synchronous
// reads background requests, whose callers cannot be interrupted, not even killed. A read-only
// handle of an inode without locks needs no FLUSH at close (rule 5), and direct handles may have
// several writers at a time.
void improve_open_reply(const Upcall& upcall, std::span<std::byte> reply) noexcept;

// The answer of a lane to an OPEN for reading.
fuse_open_out opened(uint64_t fh, bool keeps_pages) noexcept;

// Has the kernel itself read through this handle, and removes flags that it does not accept with
// that.
void pass_through(fuse_open_out& out, uint32_t backing) noexcept;

// The same for Python's answer to an OPEN, after `choose` has said how that file is read. Returns
// what is to be sent in place of the reply.
using ChoosePassthrough = std::function<PassthroughChoice(uint64_t nodeid, uint64_t fh)>;
std::span<std::byte> apply_choice(const Upcall& upcall, std::span<std::byte> reply,
                                  const ChoosePassthrough& choose);

}  // namespace braidfs::fuse
