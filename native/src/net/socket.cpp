#include "net/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace braidfs::net {

namespace {

// Replaces the congestion control BBR. BBR estimates the path between two hosts and paces by
// timers: it is made for long paths, and leaves short ones idle
// (docs/decisions/0030-large-reads.md). Any other algorithm that the system chose stays.
void leave_bbr(int socket) {
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  auto length = static_cast<socklen_t>(name.size());
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) != 0) return;
  if (std::string_view(name.data(), strnlen(name.data(), name.size())) != "bbr") return;
  // The system may refuse an algorithm to a process without rights.
  for (const std::string_view other : {"cubic", "reno"}) {
    const auto size = static_cast<socklen_t>(other.size());
    if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, other.data(), size) == 0) return;
  }
}

}  // namespace

void Socket::reset() noexcept {
  tls_.reset();
  fd_.reset();
}

int Socket::start() {
  const int flags = fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0) return -errno;
  // Local sockets refuse the option; they do not need it.
  const int one = 1;
  (void)setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  leave_bbr(fd_.get());
  if (tls_) tls_->grow_buffer();
  int domain = 0;
  socklen_t size = sizeof domain;
  local_ = getsockopt(fd_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
  return 0;
}

ssize_t Socket::receive(std::span<iovec> places) {
  if (tls_) return tls_->receive(places);
  msghdr message{};
  message.msg_iov = places.data();
  message.msg_iovlen = places.size();
  const ssize_t count = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  return count < 0 ? -errno : count;
}

ssize_t Socket::send(std::span<iovec> places) {
  if (tls_) return tls_->send(places);
  msghdr message{};
  message.msg_iov = places.data();
  message.msg_iovlen = places.size();
  const ssize_t count = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return count < 0 ? -errno : count;
}

// Only a process that may administer the network can go beyond net.core.wmem_max.
void Socket::send_buffer(int bytes) {
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) == 0) return;
  (void)setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

ssize_t Socket::send_file(int fd, uint64_t offset, size_t length) {
  auto at = static_cast<off_t>(offset);
  const ssize_t count = sendfile(fd_.get(), fd, &at, length);
  return count < 0 ? -errno : count;
}

}  // namespace braidfs::net
