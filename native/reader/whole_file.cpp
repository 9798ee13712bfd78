#include "whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace braidfs::reader {
namespace {

// O_NONBLOCK: a FIFO in place of the file must not stop the thread for good.
constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

int open_file(const char* name) noexcept {
  for (;;) {
    const int fd = ::open(name, kFlags);
    if (fd >= 0) return fd;
    if (errno != EINTR) return -errno;
  }
}

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
  const int fd = open_file(name);
  if (fd < 0) return fd;
  const std::int64_t result = read_open(fd, into);
  ::close(fd);
  return result;
}

}  // namespace braidfs::reader
