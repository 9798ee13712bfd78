#include "store/io.h"

#include <cstring>

namespace braidfs::store {

Status status_of(int64_t result) noexcept {
  if (result >= 0) return Status::kOk;
  switch (-result) {
    case ENOSPC:
    case EDQUOT:
      return Status::kEnospc;
    case EFBIG:
      return Status::kEfbig;
    case EROFS:
      return Status::kErofs;
    case ENOMEM:
      return Status::kEnomem;
    case EMFILE:
    case ENFILE:
      return Status::kBusy;  // nothing was done, and descriptors come back
    default:
      return Status::kEio;
  }
}

int read_whole(File& file, std::span<std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const iovec part{bytes.data(), bytes.size()};
    const int64_t got = file.readv({&part, 1}, offset, false);
    if (got == -EINTR) continue;
    if (got < 0) return static_cast<int>(got);
    if (got == 0) {
      std::memset(bytes.data(), 0, bytes.size());
      return 0;
    }
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return 0;
}

int read_cached(File& file, std::span<std::byte> bytes, uint64_t offset) {
  const iovec part{bytes.data(), bytes.size()};
  const int64_t got = file.readv({&part, 1}, offset, true);
  if (got < 0) return static_cast<int>(got);
  if (got == 0) {
    std::memset(bytes.data(), 0, bytes.size());
    return 0;
  }
  return static_cast<size_t>(got) == bytes.size() ? 0 : -EAGAIN;
}

int write_whole(File& file, std::span<const std::byte> bytes, uint64_t offset) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write_parts(file, {&part, 1}, offset);
}

int write_parts(File& file, std::span<const iovec> parts, uint64_t offset) {
  std::vector<iovec> left(parts.begin(), parts.end());
  size_t first = 0;
  while (first < left.size()) {
    const int64_t put = file.writev(std::span(left).subspan(first), offset);
    if (put == -EINTR) continue;
    if (put < 0) return static_cast<int>(put);
    if (put == 0) return -EIO;
    offset += static_cast<uint64_t>(put);
    auto count = static_cast<size_t>(put);
    while (first < left.size() && count >= left[first].iov_len) count -= left[first++].iov_len;
    if (count == 0) continue;
    left[first].iov_base = static_cast<std::byte*>(left[first].iov_base) + count;
    left[first].iov_len -= count;
  }
  return 0;
}

}  // namespace braidfs::store
