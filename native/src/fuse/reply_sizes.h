// The file sizes in Python's answers to the kernel, as far as they concern EOF pages (eof_pages.h).
// Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fuse/eof_pages.h"
#include "fuse/slot_table.h"

namespace braidfs::fuse {

// The size of the request's inode, in an answer that may wait. reply: whole, header included.
std::optional<uint64_t> reply_size(const Upcall& upcall, std::span<const std::byte> reply) noexcept;
// Clips the sizes of inodes in an answer under a directory's lock, which must not wait: a size that
// the kernel must not get yet is replaced by the one it knows, and may not be cached.
void clip_sizes(const Upcall& upcall, std::span<std::byte> reply, EofPages& eof_pages) noexcept;

}  // namespace braidfs::fuse
