#include "cache/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "cache/format.h"

namespace braidfs::cache {

namespace {

constexpr mode_t kMode = 0600;

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

}  // namespace

int open_file(const std::string& path, int flags, net::UniqueFd& file) {
  file.reset(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, kMode));
  return file ? 0 : -errno;
}

int open_direct(const std::string& path, int flags, net::UniqueFd& file) {
  const int error = open_file(path, flags | O_DIRECT, file);
  return error == -EINVAL ? open_file(path, flags & ~O_EXCL, file) : error;  // it may be made by then
}

int check_size(int file, uint64_t size) {
  struct stat found {};
  if (::fstat(file, &found) != 0) return -errno;
  return S_ISREG(found.st_mode) && static_cast<uint64_t>(found.st_size) == size ? 0 : -EINVAL;
}

void visit_directory(const std::string& path, const std::function<void(const char* name, int type)>& visit) {
  const std::unique_ptr<DIR, CloseDirectory> entries(::opendir(path.c_str()));
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) visit(entry->d_name, entry->d_type);
}

void FreePages::operator()(std::byte* bytes) const noexcept {
  ::operator delete[](bytes, std::align_val_t{kBlock});
}

Pages make_pages(size_t bytes) {
  return Pages(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kBlock})));
}

void go_behind(const char* name, int nice) {
  pthread_setname_np(pthread_self(), name);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), nice);
}

}  // namespace braidfs::cache
