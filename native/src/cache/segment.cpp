#include "cache/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "cache/disk.h"

namespace braidfs::cache {

namespace {

constexpr const char* kBytesSuffix = ".seg";
constexpr const char* kIndexSuffix = ".idx";
constexpr size_t kDigits = 8;
constexpr size_t kSmallMax = 64u << 20;  // larger than the index of the largest segment

std::optional<uint32_t> number_of(std::string_view name) {
  if (name.size() != kDigits + 4 || !name.ends_with(kBytesSuffix)) return std::nullopt;
  uint32_t number = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + kDigits, number);
  return fault == std::errc{} && end == name.data() + kDigits ? std::optional(number)
                                                              : std::nullopt;
}

}  // namespace

std::string Files::segment_path(uint32_t number, const char* suffix) const {
  char name[kDigits + 8];
  std::snprintf(name, sizeof name, "%08u%s", number, suffix);
  return path(name);
}

std::vector<uint32_t> Files::numbers() const {
  std::vector<uint32_t> found;
  visit_directory(directory_, [&](const char* name, int) {
    if (const auto number = number_of(name)) found.push_back(*number);
  });
  std::ranges::sort(found);
  return found;
}

int Files::create(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const {
  remove(number);
  const int made =
      open_direct(segment_path(number, kBytesSuffix), O_CREAT | O_EXCL | O_RDWR, bytes);
  if (made != 0) return made;
  int error = ::fallocate(bytes.get(), 0, 0, static_cast<off_t>(segment_bytes)) == 0 ? 0 : -errno;
  if (error == -EOPNOTSUPP) {  // a full disk is then reported by a write
    error = ::ftruncate(bytes.get(), static_cast<off_t>(segment_bytes)) == 0 ? 0 : -errno;
  }
  if (error != 0) remove(number);
  return error;
}

int Files::open(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const {
  if (const int error = open_direct(segment_path(number, kBytesSuffix), O_RDWR, bytes))
    return error;
  return check_size(bytes.get(), segment_bytes);
}

int Files::open_index(uint32_t number, net::UniqueFd& index) const {
  return open_file(segment_path(number, kIndexSuffix), O_CREAT | O_WRONLY, index);
}

std::vector<Placed> Files::entries(uint32_t number, uint64_t segment_bytes) const {
  std::vector<std::byte> bytes;
  const std::string path = segment_path(number, kIndexSuffix);
  if (read_small(path.substr(directory_.size() + 1), bytes) != 0) return {};
  return read_index(bytes, segment_bytes);
}

void Files::remove(uint32_t number) const noexcept {
  ::unlink(segment_path(number, kIndexSuffix).c_str());
  ::unlink(segment_path(number, kBytesSuffix).c_str());
}

int Files::read_small(const std::string& name, std::vector<std::byte>& bytes) const {
  net::UniqueFd file;
  if (const int error = open_file(path(name), O_RDONLY, file)) return error;
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return -errno;
  bytes.resize(std::min<size_t>(static_cast<size_t>(found.st_size), kSmallMax));
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (count < 0) return -errno;
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return 0;
}

int Files::write_small(const std::string& name, std::span<const std::byte> bytes) const {
  net::UniqueFd file;
  if (const int error = open_file(path(name), O_CREAT | O_TRUNC | O_WRONLY, file)) return error;
  const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
  return count == static_cast<ssize_t>(bytes.size()) ? 0 : count < 0 ? -errno : -ENOSPC;
}

}  // namespace braidfs::cache
