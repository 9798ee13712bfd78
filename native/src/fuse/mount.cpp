#include "fuse/mount.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr const char* kDevice = "/dev/fuse";
constexpr const char* kType = "fuse.braidfs";
constexpr unsigned long kNoSymfollow = 256;  // MS_NOSYMFOLLOW, Linux 5.10

struct FlagWord {
  std::string_view word;
  unsigned long set;
  unsigned long clear;
};

constexpr std::array kFlagWords = {
    FlagWord{"ro", MS_RDONLY, 0},
    FlagWord{"rw", 0, MS_RDONLY},
    FlagWord{"nosuid", MS_NOSUID, 0},
    FlagWord{"suid", 0, MS_NOSUID},
    FlagWord{"nodev", MS_NODEV, 0},
    FlagWord{"dev", 0, MS_NODEV},
    FlagWord{"noexec", MS_NOEXEC, 0},
    FlagWord{"exec", 0, MS_NOEXEC},
    FlagWord{"sync", MS_SYNCHRONOUS, 0},
    FlagWord{"async", 0, MS_SYNCHRONOUS},
    FlagWord{"dirsync", MS_DIRSYNC, 0},
    FlagWord{"noatime", MS_NOATIME, 0},
    FlagWord{"atime", 0, MS_NOATIME},
    FlagWord{"nodiratime", MS_NODIRATIME, 0},
    FlagWord{"relatime", MS_RELATIME, 0},
    FlagWord{"norelatime", 0, MS_RELATIME},
    FlagWord{"strictatime", MS_STRICTATIME, 0},
    FlagWord{"nosymfollow", kNoSymfollow, 0},
    FlagWord{"symfollow", 0, kNoSymfollow},
};

void append_word(std::string& text, std::string_view word) {
  if (!text.empty()) text += ',';
  text += word;
}

void take_word(MountWords& words, std::string_view word) {
  const auto flag = std::find_if(kFlagWords.begin(), kFlagWords.end(),
                                 [&](const FlagWord& known) { return known.word == word; });
  if (flag != kFlagWords.end()) {
    words.flags = (words.flags & ~flag->clear) | flag->set;
  } else if (!word.empty() && word != "allow_other" && word != "default_permissions") {
    append_word(words.text, word);
  }
}

std::string kernel_text(const MountWords& words, int device) {
  std::string text = "fd=" + std::to_string(device) +
                     ",rootmode=40000,user_id=" + std::to_string(geteuid()) +
                     ",group_id=" + std::to_string(getegid());
  append_word(text, words.text);
  return text;
}

}  // namespace

MountWords split_options(const std::string& options, bool read_only, bool checks_elsewhere) {
  MountWords words;
  std::string_view rest = options;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    take_word(words, rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  // The kernel checks permissions for everybody (rule 2), or the metaserver where everybody is one
  // user; users cannot choose these two options.
  if (!checks_elsewhere) append_word(words.text, "default_permissions");
  append_word(words.text, "allow_other");
  if (read_only) words.flags |= MS_RDONLY;
  return words;
}

int mount_device(const MountRequest& request, net::UniqueFd& device) {
  struct stat mountpoint {};
  if (::stat(request.mountpoint.c_str(), &mountpoint) != 0) return -errno;
  if (!S_ISDIR(mountpoint.st_mode)) return -ENOTDIR;
  net::UniqueFd opened(::open(kDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!opened) return -errno;
  const MountWords words =
      split_options(request.options, request.read_only, request.checks_elsewhere);
  const std::string text = kernel_text(words, opened.get());
  if (::mount(request.source.c_str(), request.mountpoint.c_str(), kType, words.flags,
              text.c_str()) != 0) {
    return -errno;
  }
  device = std::move(opened);
  return 0;
}

int clone_device(int device, net::UniqueFd& clone) {
  net::UniqueFd opened(::open(kDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!opened) return -errno;
  auto source = static_cast<uint32_t>(device);
  if (::ioctl(opened.get(), FUSE_DEV_IOC_CLONE, &source) != 0) return -errno;
  clone = std::move(opened);
  return 0;
}

int connection_number(const std::string& mountpoint) {
  std::ifstream table("/proc/self/mountinfo");
  int number = -ENOENT;  // the last match is the mount on top
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, place;
    words >> id >> parent >> device >> root >> place;
    const size_t colon = device.find(':');
    if (place != mountpoint || colon == std::string::npos || !device.starts_with("0:")) continue;
    number = std::stoi(device.substr(colon + 1));
  }
  return number;
}

int abort_connection(int number) {
  const std::string path = "/sys/fs/fuse/connections/" + std::to_string(number) + "/abort";
  const net::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return -errno;
  return ::write(file.get(), "1", 1) == 1 ? 0 : -errno;
}

}  // namespace braidfs::fuse
