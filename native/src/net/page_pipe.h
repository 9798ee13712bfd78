// Sends pages of memory to a local socket by reference, through a pipe (vmsplice(2), splice(2)).
// The pages must not change until the peer has read them.
//
// Threads: LOOP ONLY.
#pragma once
#include <cstddef>
#include <span>

#include "net/unique_fd.h"

namespace braidfs::net {

class PagePipe {
 public:
  // Makes the pipe when first called. False, now and later, when the system grants no pipe that is
  // large enough to be worth it (pipe-user-pages-soft, pipe(7)).
  bool open() noexcept;
  size_t held() const noexcept { return held_; }
  // Puts as many bytes into the pipe as it has room for. A count or -errno. Only when the pipe is
  // empty.
  ssize_t take(std::span<const std::byte> pages) noexcept;
  // Moves what the pipe holds to the socket, as far as the socket takes it. A count or -errno.
  ssize_t give(int socket) noexcept;

 private:
  bool tried_ = false;
  size_t held_ = 0;
  UniqueFd out_;
  UniqueFd in_;
};

}  // namespace braidfs::net
