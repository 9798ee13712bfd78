// Names some bytes of a file: the inode, the version of its bytes (Inode::stamp; 0: it is not
// known, or the bytes change), and where they are. Plain values, ANY THREAD.
#pragma once
#include <cstdint>

namespace braidfs::client {

struct CachedExtent {
  uint64_t ino = 0;
  uint64_t stamp = 0;
  uint64_t file_size = 0;
  uint64_t offset = 0;
  uint32_t length = 0;

  uint64_t end() const noexcept { return offset + length; }
};

}  // namespace braidfs::client
