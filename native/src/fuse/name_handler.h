// The interface between the FUSE half (this folder) and src/names, which answers requests about
// names and attributes on lanes, from what a client knows under its leases.
//
// Every method is called on the lane that read the request and must not block; two lanes may call
// at the same time. It returns true when the request was answered, or will be, through the Replier;
// false leaves the request to Python, as an upcall. Requests for file bytes go to the DataHandler
// (request.h). The default implementation answers nothing.
#pragma once
#include <linux/fuse.h>

#include <cstdint>
#include <string_view>

#include "fuse/request.h"

namespace braidfs::fuse {

// What the session knows after INIT.
struct MountFacts {
  uint64_t root_ino = FUSE_ROOT_ID;  // the inode that is node 1 for the kernel
  bool has_passthrough = false;      // docs/decisions/0041-passthrough.md
};

struct RenameRequest {
  std::string_view name;
  std::string_view new_name;  // in the same directory
  bool replaces = true;       // false: RENAME_NOREPLACE
};

class NameHandler {
 public:
  virtual ~NameHandler() = default;

  // Before the first request.
  virtual void begin(const MountFacts& /*facts*/) {}

  // Names are never empty, ".", "..", or longer than NAME_MAX.
  virtual bool lookup(const RequestHead& /*head*/, std::string_view /*name*/) { return false; }
  virtual bool getattr(const RequestHead& /*head*/) { return false; }
  virtual bool getxattr(const RequestHead& /*head*/, std::string_view /*name*/) { return false; }
  virtual bool readdirplus(const RequestHead& /*head*/, uint64_t /*offset*/, uint32_t /*size*/) {
    return false;
  }
  virtual bool create(const RequestHead& /*head*/, const fuse_create_in& /*in*/,
                      std::string_view /*name*/) {
    return false;
  }
  virtual bool setattr(const RequestHead& /*head*/, const fuse_setattr_in& /*in*/) { return false; }
  virtual bool unlink(const RequestHead& /*head*/, std::string_view /*name*/) { return false; }
  virtual bool rename(const RequestHead& /*head*/, const RenameRequest& /*request*/) {
    return false;
  }

  // An OPEN of a file that has no locks.
  virtual bool open(const RequestHead& /*head*/, uint32_t /*open_flags*/) { return false; }
  // A READ without a handle: the mount is of a sealed tree (docs/decisions/0033-sealed-mounts.md).
  virtual bool read_unopened(const ReadRequest& /*request*/) { return false; }
};

}  // namespace braidfs::fuse
