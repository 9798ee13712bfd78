// The sizes of files that Python's answers tell the kernel, and what eof_pages.h has to say of
// them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fuse/eof_pages.h"
#include "fuse/slot_table.h"

namespace braidfs::fuse {

// Of the inode of the request, by an answer that may wait; reply: whole, header included.
std::optional<uint64_t> reply_size(const Upcall& upcall, std::span<const std::byte> reply) noexcept;
// Of inodes that a directory's names are, by an answer that may not: a size that should not be told
// yet is told as the kernel has it, and not believed for any time.
void clip_sizes(const Upcall& upcall, std::span<std::byte> reply, EofPages& eof_pages) noexcept;

}  // namespace braidfs::fuse
