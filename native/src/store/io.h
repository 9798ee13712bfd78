// Whole transfers over File, and statuses of negative errnos. Blocking; any thread.
#pragma once
#include <cerrno>
#include <span>
#include <vector>

#include "store/chunk_store.h"

namespace braidfs::store {

// -errno to a status; 0 and above is kOk.
Status status_of(int64_t result) noexcept;

// Reads exactly; what lies beyond the end of the file is zeros.
int read_whole(File& file, std::span<std::byte> bytes, uint64_t offset);
// -EAGAIN when not all of it is in memory.
int read_cached(File& file, std::span<std::byte> bytes, uint64_t offset);
int write_whole(File& file, std::span<const std::byte> bytes, uint64_t offset);
int write_parts(File& file, std::span<const iovec> parts, uint64_t offset);  // at most IOV_MAX

}  // namespace braidfs::store
