#include "fuse/channels.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "fuse/open_reply.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

iovec piece_of(const void* start, size_t size) noexcept {
  return {const_cast<void*>(start), size};  // writev only reads
}

}  // namespace

void Channels::write(Channel channel, uint64_t unique, std::span<const iovec> pieces) noexcept {
  const int fd = clones_[channel].get();
  ssize_t written;
  do {
    written = ::writev(fd, pieces.data(), static_cast<int>(pieces.size()));
  } while (written < 0 && errno == EINTR);
  (written >= 0 ? sent_ : void_).fetch_add(1, std::memory_order_relaxed);
  if (written >= 0 || errno == ENOENT || errno == ENODEV) return;
  const fuse_out_header failure = answer_header(unique, EIO, 0);
  if (::write(fd, &failure, sizeof(failure)) >= 0) sent_.fetch_add(1, std::memory_order_relaxed);
}

void Channels::reply_error(Channel channel, uint64_t unique, int error) noexcept {
  const fuse_out_header header = answer_header(unique, error, 0);
  const iovec piece = piece_of(&header, sizeof(header));
  write(channel, unique, {&piece, 1});
}

void Channels::reply_data(Channel channel, uint64_t unique,
                          std::span<const iovec> pieces) noexcept {
  if (pieces.size() > kPiecesMax) return reply_error(channel, unique, EIO);
  std::array<iovec, kPiecesMax + 1> all;
  size_t size = 0;
  for (size_t index = 0; index < pieces.size(); ++index) {
    all[index + 1] = pieces[index];
    size += pieces[index].iov_len;
  }
  const fuse_out_header header = answer_header(unique, 0, size);
  all[0] = piece_of(&header, sizeof(header));
  write(channel, unique, {all.data(), pieces.size() + 1});
}

void Channels::reply_body(Channel channel, uint64_t unique,
                          std::span<const std::byte> body) noexcept {
  const iovec piece = piece_of(body.data(), body.size());
  reply_data(channel, unique, {&piece, 1});
}

void Channels::reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept {
  fuse_write_out out{};
  out.size = count;
  reply_body(channel, unique, std::as_bytes(std::span(&out, 1)));
}

void Channels::reply_open(Channel channel, uint64_t unique, uint64_t fh,
                          bool keeps_pages) noexcept {
  const fuse_open_out out = opened(fh, keeps_pages);
  reply_body(channel, unique, std::as_bytes(std::span(&out, 1)));
}

bool Channels::store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept {
  fuse_notify_store_out out{};
  out.nodeid = nodeid;
  out.size = static_cast<uint32_t>(bytes.size());
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + sizeof(out) + bytes.size());
  header.error = FUSE_NOTIFY_STORE;  // unique 0: error is the kind of notification
  const std::array<iovec, 3> pieces{piece_of(&header, sizeof(header)), piece_of(&out, sizeof(out)),
                                    piece_of(bytes.data(), bytes.size())};
  return ::writev(clones_.front().get(), pieces.data(), pieces.size()) ==
         static_cast<ssize_t>(header.len);
}

void Channels::send(Channel channel, std::span<const std::byte> reply) noexcept {
  const auto header = load<fuse_out_header>(reply);
  if (!header) return;
  const iovec piece = piece_of(reply.data(), reply.size());
  write(channel, header->unique, {&piece, 1});
}

int Channels::duplicate(std::vector<net::UniqueFd>& fds) const {
  for (const auto& clone : clones_) {
    fds.emplace_back(::fcntl(clone.get(), F_DUPFD, 3));
    if (!fds.back()) return -errno;
  }
  return 0;
}

void Channels::close() noexcept {
  const net::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  for (auto& clone : clones_) {
    if (nowhere) ::dup3(nowhere.get(), clone.get(), O_CLOEXEC);  // keeps the fd's number in use
  }
}

void Channels::reply_again(uint64_t interrupt_unique) noexcept {
  const fuse_out_header header = answer_header(interrupt_unique, EAGAIN, 0);
  for (const auto& clone : clones_) {
    if (::write(clone.get(), &header, sizeof(header)) >= 0) return;
  }
}

}  // namespace braidfs::fuse
