// Whole transfers over File, and the status of a negative errno. Blocking. ANY THREAD.
#pragma once
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <vector>

#include "braidfs/status.h"
#include "store/device.h"

namespace braidfs::store {

// The status of -errno; kOk for 0 and above.
Status status_of(int64_t result) noexcept;

// Reads exactly as many bytes as asked; what lies beyond the end of the file is zeros.
int read_whole(File& file, std::span<std::byte> bytes, uint64_t offset);
// The same from memory only; -EAGAIN when not all of it is in memory.
int read_cached(File& file, std::span<std::byte> bytes, uint64_t offset);
int write_whole(File& file, std::span<const std::byte> bytes, uint64_t offset);
// at most IOV_MAX parts
int write_parts(File& file, std::span<const iovec> parts, uint64_t offset);

}  // namespace braidfs::store
