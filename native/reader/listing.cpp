#include "listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "descriptor.h"

namespace braidfs::reader {
namespace {

// FUSE makes its requests as large as this, and looks up each name that it is told, so what is
// asked of a file right behind its name needs no request.
constexpr std::size_t kBufferBytes = 256 << 10;

// How the system call packs an entry; the name behind it ends with a NUL.
struct EntryHead {
  std::uint64_t inode;
  std::int64_t next;
  std::uint16_t length;
  unsigned char type;
};
constexpr std::size_t kNameAt = offsetof(EntryHead, type) + 1;

struct File {
  std::size_t name_at;  // in the names
  std::size_t name_length;
  std::uint64_t size;
  std::uint64_t inode;
};

// Returns 0 or an errno.
int look(int folder, const char* name, int flags, struct statx& seen) noexcept {
  while (::statx(folder, name, flags | AT_NO_AUTOMOUNT, STATX_TYPE | STATX_SIZE | STATX_INO,
                 &seen) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

char small(char letter) noexcept {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool has_end(std::string_view name, std::string_view end) noexcept {
  if (name.size() < end.size()) return false;
  const std::string_view tail = name.substr(name.size() - end.size());
  return std::equal(tail.begin(), tail.end(), end.begin(),
                    [](char one, char wanted) { return small(one) == wanted; });
}

// One pass over a folder.
class Pass {
 public:
  // is_told: the kernel has got sizes with the names.
  Pass(int folder, std::span<const std::string_view> ends, bool is_told)
      : folder_(folder), ends_(ends), file_flags_(is_told ? AT_STATX_DONT_SYNC : 0) {}

  // Notes all entries. Returns 0 or an errno.
  int run() {
    const std::unique_ptr<char[]> buffer(new char[kBufferBytes]);
    for (;;) {
      const long count = ::syscall(SYS_getdents64, folder_, buffer.get(), kBufferBytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) return 0;
      const int error = note_all({buffer.get(), static_cast<std::size_t>(count)});
      if (error != 0) return error;
    }
  }

  void pack(std::string_view prefix, Listing& listing);

 private:
  int note_all(std::string_view entries) {
    while (!entries.empty()) {
      EntryHead head{};
      if (entries.size() <= kNameAt) return EIO;
      std::memcpy(&head, entries.data(), kNameAt);
      if (head.length <= kNameAt || head.length > entries.size()) return EIO;
      const char* name = entries.data() + kNameAt;
      const std::size_t length = ::strnlen(name, head.length - kNameAt);
      if (length == head.length - kNameAt) return EIO;
      const int error = note({name, length}, head.type);
      if (error != 0) return error;
      entries.remove_prefix(head.length);
    }
    return 0;
  }

  // The name ends with a NUL.
  int note(std::string_view name, unsigned char type) {
    if (name == "." || name == "..") return 0;
    if (type == DT_DIR) {
      note_folder(name);
      return 0;
    }
    if (type == DT_UNKNOWN) return note_unknown(name);
    return type == DT_REG || type == DT_LNK ? note_file(name, type == DT_LNK) : 0;
  }

  int note_unknown(std::string_view name) {
    struct statx seen {};
    const int error = look(folder_, name.data(), AT_SYMLINK_NOFOLLOW, seen);
    if (error != 0) return error == ENOENT ? 0 : error;
    if (S_ISDIR(seen.stx_mode)) note_folder(name);
    return S_ISREG(seen.stx_mode) || S_ISLNK(seen.stx_mode)
               ? note_file(name, S_ISLNK(seen.stx_mode))
               : 0;
  }

  int note_file(std::string_view name, bool is_link) {
    if (!is_wanted(name)) return 0;
    struct statx seen {};
    const int flags = is_link ? 0 : AT_SYMLINK_NOFOLLOW | file_flags_;
    const int error = look(folder_, name.data(), flags, seen);
    const bool leads_nowhere = is_link && (error == ELOOP || error == ENOTDIR);
    if (error != 0) return error == ENOENT || leads_nowhere ? 0 : error;
    if (!S_ISREG(seen.stx_mode)) return 0;
    files_.push_back({names_.size(), name.size(), seen.stx_size, is_link ? 0 : seen.stx_ino});
    names_ += name;
    return 0;
  }

  void note_folder(std::string_view name) { folders_.emplace_back(name) += '/'; }

  bool is_wanted(std::string_view name) const {
    return ends_.empty() || std::any_of(ends_.begin(), ends_.end(), [name](std::string_view end) {
             return has_end(name, end);
           });
  }

  std::string_view name_of(const File& file) const {
    return {names_.data() + file.name_at, file.name_length};
  }

  int folder_;
  std::span<const std::string_view> ends_;
  int file_flags_;
  std::string names_;
  std::vector<File> files_;
  std::vector<std::string> folders_;
};

void Pass::pack(std::string_view prefix, Listing& listing) {
  std::sort(files_.begin(), files_.end(),
            [this](const File& one, const File& other) { return name_of(one) < name_of(other); });
  std::sort(folders_.begin(), folders_.end());
  listing.paths.reserve(names_.size() + files_.size() * prefix.size());
  listing.offsets.reserve(files_.size() + 1);
  listing.sizes.reserve(files_.size());
  listing.inodes.reserve(files_.size());
  listing.offsets.push_back(0);
  for (const File& file : files_) {
    listing.paths += prefix;
    listing.paths += name_of(file);
    listing.offsets.push_back(listing.paths.size());
    listing.sizes.push_back(file.size);
    listing.inodes.push_back(file.inode);
  }
  for (std::string& folder : folders_) {
    const auto behind = std::lower_bound(
        files_.begin(), files_.end(), std::string_view(folder),
        [this](const File& file, std::string_view name) { return name_of(file) < name; });
    listing.places.push_back(static_cast<std::uint64_t>(behind - files_.begin()));
    listing.folders.push_back(std::move(folder));
  }
}

}  // namespace

int list_folder(const char* folder, const Wish& wish, Listing& listing) {
  const Descriptor opened(folder, O_DIRECTORY);
  if (opened.error() != 0) return opened.error();
  struct statx seen {};
  int error = look(opened.get(), "", AT_EMPTY_PATH, seen);
  if (error != 0) return error;
  listing.inode = seen.stx_ino;
  const bool is_told =
      wish.device != 0 && wish.device == makedev(seen.stx_dev_major, seen.stx_dev_minor);
  Pass pass(opened.get(), wish.ends, is_told);
  error = pass.run();
  if (error == 0) pass.pack(wish.prefix, listing);
  return error;
}

}  // namespace braidfs::reader
