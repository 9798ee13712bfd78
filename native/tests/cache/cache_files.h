// Shared parts of the tests of cache directories: bytes that depend on their place, and ways to
// damage files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace braidfs::cache {

// The byte of a file at that place.
inline std::byte byte_at(uint64_t ino, uint64_t at) {
  return std::byte(ino * 31 + at * 7 + at / 4096);
}

// The files with that suffix; empty if there is no such folder.
inline std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder,
                                                   const std::string& suffix) {
  std::vector<std::filesystem::path> found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == suffix) found.push_back(entry.path());
  }
  return found;
}

inline void overwrite(const std::filesystem::path& path, uint64_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file << bytes;
}

}  // namespace braidfs::cache
