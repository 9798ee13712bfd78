#include "cache/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "cache/format.h"

namespace braidfs::cache {

namespace {

constexpr mode_t kMode = 0600;

bool is_only_ours(const struct stat& found) {
  return found.st_uid == ::geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

}  // namespace

int open_file(const std::string& path, int flags, net::UniqueFd& file) {
  file.reset(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file) return -errno;
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return -errno;
  return is_only_ours(found) ? 0 : -EPERM;
}

std::string why_untrusted(const std::string& directory) {
  struct stat found {};
  if (::lstat(directory.c_str(), &found) != 0) return std::strerror(errno);
  if (!S_ISDIR(found.st_mode)) return "it is no directory (nor may it be a link to one)";
  if (found.st_uid != ::geteuid())
    return "it belongs to another user: what lies in it could be read as file data";
  if (!is_only_ours(found))
    return "others may write to it (chmod go-w): what they put there could be read as file data";
  return "";
}

int open_direct(const std::string& path, int flags, net::UniqueFd& file) {
  const int error = open_file(path, flags | O_DIRECT, file);
  // Without O_EXCL, because the failed open may have created the file.
  return error == -EINVAL ? open_file(path, flags & ~O_EXCL, file) : error;
}

int check_size(int file, uint64_t size) {
  struct stat found {};
  if (::fstat(file, &found) != 0) return -errno;
  return S_ISREG(found.st_mode) && static_cast<uint64_t>(found.st_size) == size ? 0 : -EINVAL;
}

void visit_directory(const std::string& path,
                     const std::function<void(const char* name, int type)>& visit) {
  const std::unique_ptr<DIR, CloseDirectory> entries(::opendir(path.c_str()));
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr)
    visit(entry->d_name, entry->d_type);
}

void FreePages::operator()(std::byte* bytes) const noexcept {
  ::operator delete[](bytes, std::align_val_t{kBlock});
}

Pages make_pages(size_t bytes) {
  return Pages(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kBlock})));
}

void lower_priority(const char* name, int nice) {
  pthread_setname_np(pthread_self(), name);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), nice);
}

}  // namespace braidfs::cache
