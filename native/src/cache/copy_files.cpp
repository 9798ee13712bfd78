#include "cache/copy_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <set>

#include "cache/segment.h"

namespace braidfs::cache {

namespace {

constexpr uint64_t kMagic = 0x3179'706f'6344'5242;  // "BRDcopy1"
constexpr const char* kSumsSuffix = ".sum";
constexpr const char* kPartSuffix = ".part";

struct CopyHead {
  uint64_t magic;
  Cluster cluster;
  uint64_t ino;
  uint64_t stamp;
  uint64_t size;
};
static_assert(sizeof(CopyHead) == 48);

// With O_DIRECT, a read at the end of a file returns what there is.
bool read_at(int file, std::span<std::byte> place, uint64_t offset, size_t wanted) {
  const ssize_t count = ::pread(file, place.data(), place.size(), static_cast<off_t>(offset));
  return count >= static_cast<ssize_t>(wanted);
}

}  // namespace

std::vector<std::byte> encode(const WholeFile& file, const Cluster& cluster,
                              const SliceSums& sums) {
  const CopyHead head{kMagic, cluster, file.ino, file.stamp, file.size};
  std::vector<std::byte> bytes(sizeof head + (sums.size() + 1) * sizeof(uint64_t));
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, sums.data(), sums.size() * sizeof(uint64_t));
  const size_t seal_at = bytes.size() - sizeof(uint64_t);
  const uint64_t seal = xxh3(std::span<const std::byte>(bytes).first(seal_at));
  std::memcpy(bytes.data() + seal_at, &seal, sizeof seal);
  return bytes;
}

std::optional<Summed> decode_sums(std::span<const std::byte> bytes, const Cluster& cluster) {
  CopyHead head;
  if (bytes.size() < sizeof head + sizeof(uint64_t)) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  const size_t seal_at = bytes.size() - sizeof(uint64_t);
  uint64_t seal;
  std::memcpy(&seal, bytes.data() + seal_at, sizeof seal);
  if (head.magic != kMagic || head.cluster != cluster || seal != xxh3(bytes.first(seal_at)))
    return std::nullopt;
  Summed summed{{head.ino, head.stamp, head.size}, SliceSums(slice_count(head.size))};
  if (seal_at - sizeof head != summed.sums.size() * sizeof(uint64_t)) return std::nullopt;
  std::memcpy(summed.sums.data(), bytes.data() + sizeof head, seal_at - sizeof head);
  return summed;
}

std::string CopyFiles::name_of(const WholeFile& file) {
  char name[40];
  std::snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64, file.ino, file.stamp);
  return name;
}

int CopyFiles::make_directory() const {
  return ::mkdir(directory_.c_str(), 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

uint64_t CopyFiles::place_bytes(uint64_t size) noexcept {
  return padded(size) +
         padded(sizeof(CopyHead) + (slice_count(size) + uint64_t{1}) * sizeof(uint64_t));
}

std::optional<Summed> CopyFiles::read_sums(const std::string& name) const {
  std::vector<std::byte> bytes;
  if (Files(directory_).read_small(name + kSumsSuffix, bytes) != 0) return std::nullopt;
  return decode_sums(bytes, cluster_);
}

std::optional<CopyFiles::Known> CopyFiles::inspect(const std::string& name) const {
  const auto summed = read_sums(name);
  struct stat found {};
  if (!summed || name_of(summed->file) != name || ::lstat(path(name).c_str(), &found) != 0)
    return std::nullopt;
  if (!S_ISREG(found.st_mode) || static_cast<uint64_t>(found.st_size) != summed->file.size)
    return std::nullopt;
  return Known{summed->file, found.st_mtim};
}

std::vector<CopyFiles::Known> CopyFiles::sweep() const {
  std::set<std::string> names;
  visit_directory(directory_, [&](const char* name, int type) {
    if (type != DT_DIR) names.insert(name);
  });
  std::vector<Known> whole;
  std::set<std::string> kept;
  for (const std::string& name : names) {
    const auto known = names.contains(name + kSumsSuffix) ? inspect(name) : std::nullopt;
    if (!known) continue;
    kept.insert({name, name + kSumsSuffix});
    whole.push_back(*known);
  }
  for (const std::string& name : names) {
    if (!kept.contains(name)) ::unlink(path(name).c_str());
  }
  return whole;
}

int CopyFiles::begin(const WholeFile& file, net::UniqueFd& part) const {
  const std::string to = path(name_of(file) + kPartSuffix);
  ::unlink(to.c_str());
  if (const int error = open_direct(to, O_CREAT | O_EXCL | O_RDWR, part)) return error;
  if (::fallocate(part.get(), 0, 0, static_cast<off_t>(padded(file.size))) == 0 ||
      errno == EOPNOTSUPP)
    return 0;
  return -errno;
}

int CopyFiles::write_slice(int part, uint32_t slice, std::span<const std::byte> pages) {
  const auto at = static_cast<off_t>(uint64_t{slice} * kSliceBytes);
  const ssize_t count = ::pwrite(part, pages.data(), pages.size(), at);
  return count == static_cast<ssize_t>(pages.size()) ? 0 : count < 0 ? -errno : -ENOSPC;
}

int CopyFiles::finish(const WholeFile& file, const SliceSums& sums, int part) const {
  if (::ftruncate(part, static_cast<off_t>(file.size)) != 0 || ::fdatasync(part) != 0)
    return -errno;
  ::posix_fadvise(part, 0, 0, POSIX_FADV_DONTNEED);  // for a filesystem without O_DIRECT
  const std::string name = name_of(file);
  const std::string sums_part = name + kSumsSuffix + kPartSuffix;
  if (const int error = Files(directory_).write_small(sums_part, encode(file, cluster_, sums)))
    return error;
  if (::rename(path(name + kPartSuffix).c_str(), path(name).c_str()) != 0) return -errno;
  return ::rename(path(sums_part).c_str(), path(name + kSumsSuffix).c_str()) == 0 ? 0 : -errno;
}

void CopyFiles::remove(const WholeFile& file) const noexcept {
  const std::string name = path(name_of(file));
  for (const char* suffix : {".sum", ".sum.part", ".part", ""}) ::unlink((name + suffix).c_str());
}

int CopyFiles::open_past_pages(const WholeFile& file, net::UniqueFd& bytes) const {
  return open_direct(path(name_of(file)), O_RDONLY, bytes);
}

bool CopyFiles::is_slice(int bytes, const Summed& summed, uint32_t slice, SlicePages& pages) {
  const uint32_t length = slice_length(summed.file.size, slice);
  const auto place = pages.slice().first(padded(length));
  if (!read_at(bytes, place, uint64_t{slice} * kSliceBytes, length)) return false;
  return xxh3(place.first(length)) == summed.sums[slice];
}

int CopyFiles::open(const WholeFile& file, net::UniqueFd& bytes) const {
  if (const int error = open_file(path(name_of(file)), O_RDONLY, bytes)) return error;
  return check_size(bytes.get(), file.size);
}

}  // namespace braidfs::cache
