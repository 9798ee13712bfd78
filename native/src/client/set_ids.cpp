#include "client/set_ids.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>

namespace braidfs::client {

namespace {

// Whether the process has this supplementary group. False also if the process is gone.
bool has_group(uint32_t pid, uint32_t gid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Groups:")) continue;
    std::istringstream groups(line.substr(7));
    for (uint32_t group = 0; groups >> group;) {
      if (group == gid) return true;
    }
    return false;
  }
  return false;
}

}  // namespace

uint32_t kill_flags(const fuse::WriteRequest& request, const Inode::SetIds& with) {
  if ((request.write_flags & fuse::kWriteKillSuidgid) == 0) return 0;
  const bool group_executes_not = (with.mode & (S_ISGID | S_IXGRP)) == S_ISGID;
  if (!group_executes_not || request.head.gid == with.gid) return kCommitKillSuidgid;
  return kCommitKillSuidgid | (has_group(request.head.pid, with.gid) ? 0 : kCommitKillSgid);
}

}  // namespace braidfs::client
