// A connected, non-blocking stream socket, with or without TLS: one owner for both. Moved, never
// copied.
//
// Threads: one thread at a time. Not here: frames (frame_stream.h), connecting and authenticating
// (fscommon/net).
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <span>

#include "net/tls.h"
#include "net/unique_fd.h"

namespace braidfs::net {

class Socket {
 public:
  Socket() noexcept = default;
  Socket(UniqueFd fd, std::unique_ptr<Tls> tls = nullptr) noexcept
      : tls_(std::move(tls)), fd_(std::move(fd)) {}

  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept;
  // Only for a socket without TLS.
  UniqueFd take_fd() && noexcept { return std::move(fd_); }

  // Sets the socket's options for frames. 0 or -errno.
  int start();
  // A count, 0 when the peer has closed, or -errno. Bytes that send() took may still be unsent();
  // then call flush().
  ssize_t receive(std::span<iovec> places);
  ssize_t send(std::span<iovec> places);
  // Sends bytes of a file from `offset` on. A count (0: the file ends there) or -errno. Only where
  // takes_pages(). When the peer is gone, the thread gets SIGPIPE, unless it blocks that signal, as
  // EventLoop::run() does.
  ssize_t send_file(int fd, uint64_t offset, size_t length);
  // True for a local socket without TLS: pages go to it by reference. (Over TCP on one host that
  // costs more than the copy.)
  bool takes_pages() const noexcept { return local_ && !tls_; }
  void send_buffer(int bytes);
  int flush() { return tls_ ? tls_->flush() : 0; }
  bool unsent() const noexcept { return tls_ && tls_->unsent(); }
  // True: receive() would return bytes, although no event of the fd announces them.
  bool has_more() const noexcept { return tls_ && tls_->has_more(); }

 private:
  std::unique_ptr<Tls> tls_;
  UniqueFd fd_;
  bool local_ = false;
};

}  // namespace braidfs::net
