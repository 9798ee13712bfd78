#include "cache/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace braidfs::cache {

namespace {

constexpr const char* kBytesSuffix = ".seg";
constexpr const char* kIndexSuffix = ".idx";
constexpr size_t kDigits = 8;
constexpr size_t kSmallMax = 64u << 20;  // an index of the largest segment is less
constexpr mode_t kMode = 0600;

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

// Direct, so that the page cache does not hold twice what the kernel has of the files themselves.
int open_direct(const std::string& path, int flags, net::UniqueFd& file) {
  file.reset(::open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_DIRECT, kMode));
  if (!file && errno == EINVAL) {
    file.reset(::open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kMode));
  }
  return file ? 0 : -errno;
}

std::optional<uint32_t> number_of(std::string_view name) {
  if (name.size() != kDigits + 4 || !name.ends_with(kBytesSuffix)) return std::nullopt;
  uint32_t number = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + kDigits, number);
  return fault == std::errc{} && end == name.data() + kDigits ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string Files::segment_path(uint32_t number, const char* suffix) const {
  char name[kDigits + 8];
  std::snprintf(name, sizeof name, "%08u%s", number, suffix);
  return path(name);
}

std::vector<uint32_t> Files::numbers() const {
  std::vector<uint32_t> found;
  const std::unique_ptr<DIR, CloseDirectory> entries(::opendir(directory_.c_str()));
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) {
    if (const auto number = number_of(entry->d_name)) found.push_back(*number);
  }
  std::ranges::sort(found);
  return found;
}

int Files::create(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const {
  remove(number);
  if (const int error = open_direct(segment_path(number, kBytesSuffix), O_CREAT | O_EXCL, bytes)) return error;
  int error = ::fallocate(bytes.get(), 0, 0, static_cast<off_t>(segment_bytes)) == 0 ? 0 : -errno;
  if (error == -EOPNOTSUPP) {  // then a full disk is told by writing
    error = ::ftruncate(bytes.get(), static_cast<off_t>(segment_bytes)) == 0 ? 0 : -errno;
  }
  if (error != 0) remove(number);
  return error;
}

int Files::open(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const {
  if (const int error = open_direct(segment_path(number, kBytesSuffix), 0, bytes)) return error;
  struct stat found {};
  if (::fstat(bytes.get(), &found) != 0) return -errno;
  const bool fits = S_ISREG(found.st_mode) && static_cast<uint64_t>(found.st_size) == segment_bytes;
  return fits ? 0 : -EINVAL;
}

int Files::open_index(uint32_t number, net::UniqueFd& index) const {
  const std::string path = segment_path(number, kIndexSuffix);
  index.reset(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, kMode));
  return index ? 0 : -errno;
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
  const net::UniqueFd file(::open(path(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return -errno;
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
  const std::string to = path(name);
  const net::UniqueFd file(
      ::open(to.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file) return -errno;
  const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
  return count == static_cast<ssize_t>(bytes.size()) ? 0 : count < 0 ? -errno : -ENOSPC;
}

}  // namespace braidfs::cache
