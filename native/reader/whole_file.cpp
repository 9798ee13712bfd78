#include "whole_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "descriptor.h"

namespace braidfs::reader {
namespace {

std::int64_t read_open(int fd, std::span<std::byte> into) noexcept {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t count =
        ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -errno;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

std::int64_t size_of(const char* name) noexcept {
  struct stat seen {};
  if (::stat(name, &seen) != 0) return -errno;
  if (S_ISREG(seen.st_mode)) return seen.st_size;
  return S_ISDIR(seen.st_mode) ? -EISDIR : -EINVAL;
}

std::int64_t read_whole(const char* name, std::span<std::byte> into) noexcept {
  const Descriptor file(name, 0);
  return file.error() != 0 ? -file.error() : read_open(file.get(), into);
}

}  // namespace braidfs::reader
