// Pages of memory on their way into a local socket: by reference, through a pipe (vmsplice(2),
// splice(2)). What they hold must stay as it is until the peer has read it. LOOP ONLY.
#pragma once
#include <cstddef>
#include <span>

#include "net/unique_fd.h"

namespace braidfs::net {

class PagePipe {
 public:
  // False: there is none that is large enough to be worth it (pipe-user-pages-soft, pipe(7)); and
  // none later.
  bool open() noexcept;
  size_t held() const noexcept { return held_; }
  // As many as it has room for, or -errno. Only when it holds nothing.
  ssize_t take(std::span<const std::byte> pages) noexcept;
  // What it holds, as far as the socket takes it: a count, or -errno.
  ssize_t give(int socket) noexcept;

 private:
  bool tried_ = false;
  size_t held_ = 0;
  UniqueFd out_;
  UniqueFd in_;
};

}  // namespace braidfs::net
