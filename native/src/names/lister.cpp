#include "names/lister.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "fuse/parse.h"
#include "fuse/protocol.h"
#include "names/attribute_record.h"

namespace braidfs::names {

namespace {

constexpr uint32_t kSizeMin = 1024;  // has room for the first entries, whatever their names
constexpr unsigned kTypeShift = 12;  // from the mode of an inode to the type of an entry

}  // namespace

class Dirents {
 public:
  explicit Dirents(uint32_t size) : size_(size) { bytes_.reserve(size); }

  // Adds an entry. False: there is no room. nodeid 0: the kernel caches nothing of the inode.
  bool add(std::string_view name, uint64_t cookie, const fuse_entry_out& entry) {
    const size_t length = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + name.size());
    if (bytes_.size() + length > size_) return false;
    fuse_direntplus head{};
    head.entry_out = entry;
    head.dirent = {.ino = entry.attr.ino,
                   .off = cookie,
                   .namelen = static_cast<uint32_t>(name.size()),
                   .type = entry.attr.mode >> kTypeShift};
    const size_t at = bytes_.size();
    bytes_.resize(at + length);
    std::memcpy(bytes_.data() + at, &head, FUSE_NAME_OFFSET_DIRENTPLUS);
    std::memcpy(bytes_.data() + at + FUSE_NAME_OFFSET_DIRENTPLUS, name.data(), name.size());
    return true;
  }

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  size_t size_;
  std::vector<std::byte> bytes_;
};

bool Lister::read(uint64_t directory, uint64_t offset, uint32_t size, const Send& send) {
  if (size < kSizeMin) return false;
  const auto now = Clock::now();
  Dirents dirents(std::min(size, fuse::kReaddirBytesMax));
  const uint64_t behind = offset <= kParentCookie ? 0 : offset;
  bool is_given = false;
  dentries_.give(
      directory, behind, now,
      [&](const DentryTable::Row& row, std::chrono::nanoseconds valid) {
        if (dirents.bytes().empty() && !add_dots(dirents, directory, offset, now)) {
          return DentryTable::Given::kUnknown;
        }
        return add(dirents, row, valid, now);
      },
      [&] {
        is_given = !dirents.bytes().empty() || add_dots(dirents, directory, offset, now);
        if (is_given) send(dirents.bytes());
      });
  if (is_given) answered_.fetch_add(1, std::memory_order_relaxed);
  return is_given;
}

// Adds "." and "..". False: their inode numbers are not known.
bool Lister::add_dots(Dirents& dirents, uint64_t directory, uint64_t offset,
                      Clock::time_point now) const {
  if (offset >= kParentCookie) return true;
  const auto parent = known_.attributes.parent(directory, now);
  if (!parent) return false;
  fuse_entry_out entry{};
  entry.attr.mode = S_IFDIR;
  entry.attr.ino = nodeid(directory);
  if (offset < kSelfCookie) dirents.add(".", kSelfCookie, entry);
  entry.attr.ino = nodeid(*parent == 0 ? directory : *parent);
  dirents.add("..", kParentCookie, entry);
  return true;
}

DentryTable::Given Lister::add(Dirents& dirents, const DentryTable::Row& row,
                               std::chrono::nanoseconds valid, Clock::time_point now) const {
  using enum DentryTable::Given;
  if (file_bytes_.is_ahead(row.ino)) return kUnknown;
  const auto known = known_.find(row.ino, nodeid(row.ino), now);
  if (!known) return kUnknown;
  fuse_entry_out entry{};
  entry.nodeid = known->attr.ino;
  fuse::set_valid(entry, valid);
  entry.attr_valid = known->attr_valid;
  entry.attr_valid_nsec = known->attr_valid_nsec;
  entry.attr = known->attr;
  known_.attributes.keep_name(entry);
  entry.attr.size = session_.size_to_tell(entry.nodeid, entry.attr.size);
  if (entry.attr.size != known->attr.size) entry.attr_valid = entry.attr_valid_nsec = 0;
  return dirents.add(row.name, row.cookie, entry) ? kTaken : kFull;
}

}  // namespace braidfs::names
