// What the files of a cache directory share, segments' and copies': how they are opened, read and
// named, memory that a disk reads directly, and threads that stand behind the lanes. Results are 0
// or -errno. ANY THREAD.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "net/unique_fd.h"

namespace braidfs::cache {

// -EPERM: it is another user's, or others may write to it.
int open_file(const std::string& path, int flags, net::UniqueFd& file);
// Why this directory is not to be believed: half a sentence, empty for one that only this user can
// write to.
std::string why_not_ours(const std::string& directory);
// Past the page cache, which would hold twice what the kernel has of the files themselves; through
// it where the file system does not know O_DIRECT.
int open_direct(const std::string& path, int flags, net::UniqueFd& file);
// -EINVAL: it is no regular file of that size.
int check_size(int file, uint64_t size);
// The names in it, of whatever type (dirent's).
void visit_directory(const std::string& path,
                     const std::function<void(const char* name, int type)>& visit);

// Begins on a block.
struct FreePages {
  void operator()(std::byte* bytes) const noexcept;
};
using Pages = std::unique_ptr<std::byte[], FreePages>;
Pages make_pages(size_t bytes);

// This thread gets a name, and runs behind others.
void go_behind(const char* name, int nice);

}  // namespace braidfs::cache
