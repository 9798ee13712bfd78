// What all files of a cache directory (segments and copies) need: functions that open, check and
// list them, memory that a disk reads directly, and threads with lower priority than the lanes.
//
// Results are 0 or -errno. ANY THREAD.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "net/unique_fd.h"

namespace braidfs::cache {

// -EPERM: the file belongs to another user, or others may write to it.
int open_file(const std::string& path, int flags, net::UniqueFd& file);
// Why this directory must not be trusted: the second half of a sentence; empty when only this user
// can write to it.
std::string why_untrusted(const std::string& directory);
// Opens a file past the page cache, which would hold the bytes a second time: the kernel caches the
// files themselves. Where the filesystem has no O_DIRECT, through the page cache.
int open_direct(const std::string& path, int flags, net::UniqueFd& file);
// -EINVAL: it is not a regular file of that size.
int check_size(int file, uint64_t size);
// Visits the names in a directory, with their type (as in dirent).
void visit_directory(const std::string& path,
                     const std::function<void(const char* name, int type)>& visit);

// Memory that begins on a block.
struct FreePages {
  void operator()(std::byte* bytes) const noexcept;
};
using Pages = std::unique_ptr<std::byte[], FreePages>;
Pages make_pages(size_t bytes);

// Names this thread and lowers its priority.
void lower_priority(const char* name, int nice);

}  // namespace braidfs::cache
