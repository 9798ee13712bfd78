// Opening /dev/fuse, mount(2) of type fuse.braidfs, and further fds (clones) of one mount.
// All results are 0 or a file descriptor, else -errno. Any thread; each call blocks shortly.
#pragma once
#include <string>

#include "net/unique_fd.h"

namespace braidfs::fuse {

struct MountRequest {
  std::string mountpoint;
  std::string source;
  std::string options;  // words of mount(8) that the kernel knows, separated by commas
  bool read_only = false;
  bool checks_elsewhere = false;  // the kernel checks no permissions
};

// Options split into what mount(2) takes as flags and what FUSE takes as text.
struct MountWords {
  unsigned long flags = 0;
  std::string text;  // without fd=, rootmode=, user_id=, group_id=
};
MountWords split_options(const std::string& options, bool read_only, bool checks_elsewhere = false);

// Opens /dev/fuse and mounts it; `device` is the mounted fd.
int mount_device(const MountRequest& request, net::UniqueFd& device);

// Another fd of the same mount with a queue of its own, non-blocking.
int clone_device(int device, net::UniqueFd& clone);

// The number of the mount's connection in /sys/fs/fuse/connections; touches no file of the mount.
int connection_number(const std::string& mountpoint);

// Ends the connection: every request fails with ENOTCONN or ECONNABORTED. For when a thread of this
// process waits in the kernel for a request that nobody will answer any more.
int abort_connection(int number);

}  // namespace braidfs::fuse
