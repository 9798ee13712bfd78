// Bytes of a file that go to a socket out of the page cache: the store names them, a stream sends
// them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace braidfs {

struct FilePart {
  int fd = -1;  // kept open by whoever named it
  uint64_t offset = 0;
  uint32_t length = 0;
};

inline size_t length_of(std::span<const FilePart> parts) noexcept {
  size_t length = 0;
  for (const FilePart& part : parts) length += part.length;
  return length;
}

}  // namespace braidfs
