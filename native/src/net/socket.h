// A connected, non-blocking stream socket, with TLS over it or without: one owner of both.
// Moved, never copied. One thread at a time.
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
  UniqueFd take_fd() && noexcept { return std::move(fd_); }  // of one without TLS

  // Sets it up for frames. 0 or -errno.
  int start();
  // A count, 0 at the peer's end, or -errno. What send() took may be unsent(): then flush().
  ssize_t receive(std::span<iovec> places);
  ssize_t send(std::span<iovec> places);
  // Of a file, from `offset` on: a count (0: the file ends there), or -errno. Where takes_pages().
  // A peer that is gone raises SIGPIPE in a thread that did not block it, as EventLoop::run() does.
  ssize_t send_file(int fd, uint64_t offset, size_t length);
  // To a local socket pages go as they are. (By TCP on one host this costs more than the copy.)
  bool takes_pages() const noexcept { return local_ && !tls_; }
  void send_buffer(int bytes);
  int flush() { return tls_ ? tls_->flush() : 0; }
  bool unsent() const noexcept { return tls_ && tls_->unsent(); }
  // receive() would give something, though the kernel has nothing to tell.
  bool has_more() const noexcept { return tls_ && tls_->has_more(); }

 private:
  std::unique_ptr<Tls> tls_;
  UniqueFd fd_;
  bool local_ = false;
};

}  // namespace braidfs::net
