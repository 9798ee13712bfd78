// Device on a directory of a real filesystem (ext4, XFS; tmpfs for tests of other parts). ANY
// THREAD.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <dirent.h>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "store/device.h"

namespace braidfs::store {

namespace {

// cachestat(2) exists since Linux 6.5; the C library's headers are older.
constexpr long kCachestat = 451;
constexpr uint64_t kPage = 4096;
struct CachestatRange {
  uint64_t offset;
  uint64_t length;
};
struct Cachestat {
  uint64_t cached, dirty, writeback, evicted, recently_evicted;  // in pages
};

// A file's mark is stored in its mode, as combinations that nobody gives a file by chance. Any
// other mode means no mark.
constexpr mode_t kModes[] = {0600, 01600, 01601};

uint8_t mark_of(mode_t mode) noexcept {
  if ((mode & 07777) == kModes[1]) return 1;
  return (mode & 07777) == kModes[2] ? 2 : 0;
}

int outcome(int result) noexcept { return result < 0 ? -errno : 0; }

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

class PosixFile final : public File {
 public:
  explicit PosixFile(int fd) noexcept : fd_(fd) {}
  int fd() const noexcept override { return fd_.get(); }

  int64_t readv(std::span<const iovec> parts, uint64_t offset, bool nowait) override {
    const ssize_t got = ::preadv2(fd_.get(), parts.data(), static_cast<int>(parts.size()),
                                  static_cast<off_t>(offset), nowait ? RWF_NOWAIT : 0);
    if (got < 0 && nowait && errno == EOPNOTSUPP) return -EAGAIN;
    return got < 0 ? -errno : got;
  }
  int64_t writev(std::span<const iovec> parts, uint64_t offset) override {
    const ssize_t put = ::pwritev(fd_.get(), parts.data(), static_cast<int>(parts.size()),
                                  static_cast<off_t>(offset));
    return put < 0 ? -errno : put;
  }
  int write_out(uint64_t offset, uint64_t length) override {
    return outcome(::sync_file_range(fd_.get(), static_cast<off_t>(offset),
                                     static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE));
  }
  int sync() override { return outcome(::fdatasync(fd_.get())); }
  int truncate(uint64_t size) override {
    return outcome(::ftruncate(fd_.get(), static_cast<off_t>(size)));
  }
  int punch(uint64_t offset, uint64_t length) override {
    return outcome(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               static_cast<off_t>(offset), static_cast<off_t>(length)));
  }
  int allocate(uint64_t offset, uint64_t length) override {
    return outcome(::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                               static_cast<off_t>(length)));
  }
  int figures(FileFigures& figures) override {
    struct stat status {};
    if (::fstat(fd_.get(), &status) < 0) return -errno;
    figures.size = static_cast<uint64_t>(status.st_size);
    figures.allocated = static_cast<uint64_t>(status.st_blocks) * 512;
    figures.mark = mark_of(status.st_mode);
    return 0;
  }
  int set_mark(uint8_t mark) override { return outcome(::fchmod(fd_.get(), kModes[mark])); }
  int64_t next_data(uint64_t offset) override {
    const off_t found = ::lseek(fd_.get(), static_cast<off_t>(offset), SEEK_DATA);
    return found < 0 ? -errno : found;
  }
  void will_need(uint64_t offset, uint64_t length) override {
    ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length),
                    POSIX_FADV_WILLNEED);
  }
  bool is_cached(uint64_t offset, uint64_t length) override {
    const CachestatRange range{offset, length};
    Cachestat pages{};
    return ::syscall(kCachestat, fd_.get(), &range, &pages, 0u) == 0 &&
           pages.cached * kPage >= length;
  }

 private:
  Descriptor fd_;
};

class PosixDevice final : public Device {
 public:
  explicit PosixDevice(int root) noexcept : root_(root), lock_(-1) {}
  ~PosixDevice() override {
    if (lock_ >= 0) ::close(lock_);
  }

  int open(const std::string& path, OpenMode mode, std::shared_ptr<File>& file) override {
    if (mode == OpenMode::kCached) return open_cached(path, file);
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    if (mode == OpenMode::kCreate) flags |= O_CREAT;
    if (mode == OpenMode::kDirect) flags |= O_DIRECT;
    int fd = ::openat(root_.get(), path.c_str(), flags, 0600);
    while (fd < 0 && (errno == EMFILE || errno == ENFILE) && make_room()) {
      fd = ::openat(root_.get(), path.c_str(), flags, 0600);
    }
    if (fd < 0) return -errno;
    file = std::make_shared<PosixFile>(fd);
    return 0;
  }
  int make_directory(const std::string& path) override {
    if (::mkdirat(root_.get(), path.c_str(), 0700) == 0 || errno == EEXIST) return 0;
    return -errno;
  }
  int rename(const std::string& from, const std::string& to) override {
    return outcome(::renameat(root_.get(), from.c_str(), root_.get(), to.c_str()));
  }
  int unlink(const std::string& path) override {
    return outcome(::unlinkat(root_.get(), path.c_str(), 0));
  }
  int sync_directory(const std::string& path) override {
    const Descriptor directory(open_directory(path));
    return directory.get() < 0 ? -errno : outcome(::fsync(directory.get()));
  }
  int sync_all() override { return outcome(::syncfs(root_.get())); }

  int list(const std::string& path,
           const std::function<void(std::string_view name)>& visit) override {
    const int fd = open_directory(path);
    if (fd < 0) return -errno;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd), ::closedir);
    if (!directory) {
      ::close(fd);
      return -ENOMEM;
    }
    errno = 0;
    while (const dirent* entry = ::readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") visit(name);
      errno = 0;
    }
    return -errno;
  }
  int space(DeviceSpace& space) override {
    struct statvfs status {};
    if (::fstatvfs(root_.get(), &status) < 0) return -errno;
    space.bytes_total = uint64_t{status.f_blocks} * status.f_frsize;
    space.bytes_free = uint64_t{status.f_bavail} * status.f_frsize;
    space.files_total = status.f_files;
    space.files_free = status.f_favail;
    return 0;
  }
  int lock(const std::string& path) override {
    const int fd = ::openat(root_.get(), path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    if (::flock(fd, LOCK_EX | LOCK_NB) < 0) {
      const int error = errno;
      ::close(fd);
      return -error;
    }
    lock_ = fd;
    return 0;
  }
  std::string boot_id() override {
    std::ifstream source("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(source, id);
    return id;
  }

 private:
  // openat2(2) with RESOLVE_CACHED exists since Linux 5.12. Where it is refused, nothing is known
  // to be in memory.
  int open_cached(const std::string& path, std::shared_ptr<File>& file) const {
    open_how how{};
    how.flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    how.resolve = RESOLVE_CACHED;
    const long fd = ::syscall(SYS_openat2, root_.get(), path.c_str(), &how, sizeof(how));
    if (fd < 0) return errno == ENOENT ? -ENOENT : -EAGAIN;
    file = std::make_shared<PosixFile>(static_cast<int>(fd));
    return 0;
  }
  int open_directory(const std::string& path) const {
    return ::openat(root_.get(), path.empty() ? "." : path.c_str(),
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  Descriptor root_;
  int lock_;
};

}  // namespace

int open_posix_device(const std::string& root, std::shared_ptr<Device>& device) {
  const int fd = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  device = std::make_shared<PosixDevice>(fd);
  return 0;
}

}  // namespace braidfs::store
