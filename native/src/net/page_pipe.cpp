#include "net/page_pipe.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace braidfs::net {

namespace {

constexpr int kWanted = 1 << 20;   // the default of /proc/sys/fs/pipe-max-size
constexpr int kLeast = 256 << 10;  // a smaller pipe costs more than the copy that it saves

}  // namespace

bool PagePipe::open() noexcept {
  if (tried_) return static_cast<bool>(in_);
  tried_ = true;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return false;
  out_.reset(ends[0]);
  in_.reset(ends[1]);
  (void)fcntl(in_.get(), F_SETPIPE_SZ, kWanted);
  if (fcntl(in_.get(), F_GETPIPE_SZ) >= kLeast) return true;
  in_.reset();
  out_.reset();
  return false;
}

ssize_t PagePipe::take(std::span<const std::byte> pages) noexcept {
  const iovec part{const_cast<std::byte*>(pages.data()), pages.size()};
  const ssize_t count = vmsplice(in_.get(), &part, 1, SPLICE_F_NONBLOCK);
  if (count < 0) return -errno;
  held_ += static_cast<size_t>(count);
  return count;
}

ssize_t PagePipe::give(int socket) noexcept {
  const ssize_t count = splice(out_.get(), nullptr, socket, nullptr, held_, SPLICE_F_NONBLOCK);
  if (count <= 0) return count < 0 ? -errno : -EPIPE;
  held_ -= static_cast<size_t>(count);
  return count;
}

}  // namespace braidfs::net
