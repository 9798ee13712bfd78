// One file: its size, and all of its bytes. No threads and no Python here.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace braidfs::reader {

// Size of the regular file of that name, or -errno; -EISDIR: it is a directory, -EINVAL: it is
// something else.
std::int64_t size_of(const char* name) noexcept;

// Reads the file from its begin to its end, or until `into` is full. Returns the count of bytes, or
// -errno. A count of all of `into` says nothing about the end of the file: callers give a byte more
// than they expect.
std::int64_t read_whole(const char* name, std::span<std::byte> into) noexcept;

}  // namespace braidfs::reader
