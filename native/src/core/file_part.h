// A part of a file that is sent to a socket out of the page cache. The chunk store names the parts
// of a reply; a net::Stream sends them.
//
// A FilePart does not own its descriptor. Plain values: ANY THREAD.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace braidfs {

struct FilePart {
  // The descriptor stays open until the part is sent; the code that made the part ensures that.
  int fd = -1;
  uint64_t offset = 0;
  uint32_t length = 0;
};

inline size_t length_of(std::span<const FilePart> parts) noexcept {
  size_t length = 0;
  for (const FilePart& part : parts) length += part.length;
  return length;
}

}  // namespace braidfs
