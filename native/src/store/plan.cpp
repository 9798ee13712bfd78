// IoPlan: transfers that may be short, performed inline, by a worker or by io_uring. Used by one
// thread at a time.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "store/io.h"
#include "store/requests.h"

namespace braidfs::store {

std::span<const iovec> IoPlan::parts(const IoSegment& segment) const noexcept {
  return {parts_.data() + segment.part_first, segment.part_count};
}

uint64_t IoPlan::bytes() const noexcept {
  uint64_t bytes = 0;
  for (const IoSegment& segment : segments_) bytes += segment.length;
  return bytes;
}

bool IoPlan::is_aligned() const noexcept {
  return std::all_of(parts_.begin(), parts_.end(), [](const iovec& part) {
    return reinterpret_cast<uintptr_t>(part.iov_base) % limits::kBlockSize == 0 &&
           part.iov_len % limits::kBlockSize == 0;
  });
}

bool IoPlan::done() const noexcept {
  return std::all_of(segments_.begin(), segments_.end(),
                     [](const IoSegment& segment) { return segment.length == 0; });
}

void IoPlan::consume(IoSegment& segment, uint32_t count) noexcept {
  segment.length -= count;
  segment.file_offset += count;
  while (count != 0) {
    iovec& part = parts_[segment.part_first];
    const auto step = static_cast<uint32_t>(std::min<size_t>(count, part.iov_len));
    part.iov_base = static_cast<std::byte*>(part.iov_base) + step;
    part.iov_len -= step;
    count -= step;
    if (part.iov_len == 0) {
      ++segment.part_first;
      --segment.part_count;
    }
  }
}

bool IoPlan::complete(size_t index, int64_t result) noexcept {
  IoSegment& segment = segments_[index];
  if (result == -EAGAIN || result == -EINTR) return true;
  if (result < 0) {
    status_ = status_of(result);
    segment.length = 0;
    return false;
  }
  consume(segment, static_cast<uint32_t>(std::min<int64_t>(result, segment.length)));
  if (result != 0 || segment.length == 0) return segment.length != 0;
  if (write_) {
    status_ = Status::kEio;
  } else {  // the part beyond the end of the file is a hole
    for (const iovec& part : parts(segment)) std::memset(part.iov_base, 0, part.iov_len);
  }
  segment.length = 0;
  return false;
}

void IoPlan::run() noexcept {
  for (size_t i = 0; i < segments_.size(); ++i) {
    IoSegment& segment = segments_[i];
    while (segment.length != 0) {
      const int64_t result = write_ ? file_->writev(parts(segment), segment.file_offset)
                                    : file_->readv(parts(segment), segment.file_offset, false);
      complete(i, result);
    }
  }
}

bool IoPlan::run_nowait() noexcept {
  if (write_ || direct_) return done();
  bool nothing_left = true;
  for (size_t i = 0; i < segments_.size(); ++i) {
    while (segments_[i].length != 0) {
      const IoSegment& segment = segments_[i];
      const int64_t result = file_->readv(parts(segment), segment.file_offset, true);
      if (result == -EAGAIN) break;
      complete(i, result);
    }
    nothing_left = nothing_left && segments_[i].length == 0;
  }
  return nothing_left;
}

}  // namespace braidfs::store
