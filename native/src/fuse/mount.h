// Opens /dev/fuse, mounts it (type fuse.braidfs), and makes further fds (clones) of a mount.
// Results are 0 or a file descriptor, else -errno. Any thread; each call blocks for a short time.
#pragma once
#include <string>

#include "net/unique_fd.h"

namespace braidfs::fuse {

struct MountRequest {
  std::string mountpoint;
  std::string source;
  std::string options;  // options of mount(8) that the kernel knows, separated by commas
  bool read_only = false;
  bool checks_elsewhere = false;  // the kernel checks no permissions
};

// Mount options, split into flags of mount(2) and text for FUSE.
struct MountWords {
  unsigned long flags = 0;
  std::string text;  // without fd=, rootmode=, user_id=, group_id=
};
MountWords split_options(const std::string& options, bool read_only, bool checks_elsewhere = false);

// Opens /dev/fuse and mounts it. `device`: the fd of the mount.
int mount_device(const MountRequest& request, net::UniqueFd& device);

// Makes another fd of the same mount, with a queue of its own, non-blocking.
int clone_device(int device, net::UniqueFd& clone);

// The number of the mount's connection in /sys/fs/fuse/connections; accesses no file of the mount.
int connection_number(const std::string& mountpoint);

// Ends the connection: every request fails with ENOTCONN or ECONNABORTED. Needed when a thread of
// this process waits in the kernel for a request that nobody will answer.
int abort_connection(int number);

}  // namespace braidfs::fuse
