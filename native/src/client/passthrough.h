// Which open files the kernel reads by itself, from their whole copies in the local cache
// (docs/decisions/0041-passthrough.md).
//
// Rule 9: handles of one inode that use the page cache and handles that pass through do not mix,
// nor do those that pass through to different files: the kernel would answer EIO. So each handle is
// counted from before the answer to its OPEN until its RELEASE, which is what the kernel has of it,
// or more. The first handle of an inode decides for those that come while it is open. The id of the
// file behind is asked for with the first handle and given back with the last. Nothing here knows
// of Handle or Inode: a handle of the process before whose file could not be opened again is one
// that the kernel has all the same. ANY THREAD, guarded by mu_. Under it are two system calls for
// the first handle of a file, one for the last, and the locks of Copies and OpenRecord.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/copies.h"
#include "client/open_record.h"
#include "fuse/request.h"

namespace braidfs::client {

// The kernel's end: ids of open files.
struct BackingCalls {
  std::function<int(int file)> open;  // the id, or -errno
  std::function<void(uint32_t id)> close;
};

class Passthrough {
 public:
  // What a file is known to be as it is opened.
  struct Opened {
    cache::WholeFile file;
    uint64_t fh = 0;
    bool is_immutable = false;
    bool is_certain = true;  // that it is, or is not
    bool is_leased = false;  // its bytes: nobody changes them
    bool is_direct = false;  // passes the page cache by, but for its mappings
  };
  // How one inode is read; of the process before, too.
  struct Backing {
    uint64_t ino = 0;
    uint32_t id = 0;
    uint64_t stamp = 0;
  };

  // copies: nullptr where there is no cache: what the kernel has since the process before is
  // counted all the same.
  Passthrough(cache::Copies* copies, OpenRecord& record, BackingCalls calls)
      : copies_(copies), record_(record), calls_(std::move(calls)) {}

  fuse::Passing opened(const Opened& opened);
  void closed(uint64_t fh);

  // Before the first request: what the kernel has open since the process before. Handles and their
  // inodes.
  void adopt(const std::vector<Backing>& backings,
             const std::vector<std::pair<uint64_t, uint64_t>>& handles);
  std::vector<Backing> backings();

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  struct Entry {
    uint32_t handles = 0;
    uint32_t id = 0;  // 0: requests
    cache::WholeFile file;
    bool uses_copy = false;  // Copies is to be told of the end
    OpenRecord::Slot noted = OpenRecord::kNone;
  };

  // LOCKED
  bool begin(Entry& entry, const Opened& opened);
  void note(Entry& entry);
  fuse::Passing enter(Entry& entry, const Opened& opened);

  cache::Copies* const copies_;
  OpenRecord& record_;
  const BackingCalls calls_;
  std::mutex mu_;
  std::unordered_map<uint64_t, Entry> inodes_;                   // guarded by mu_: with handles
  std::unordered_map<uint64_t, uint64_t> handles_;               // guarded by mu_: inode of each
  uint64_t opens_ = 0, stale_ = 0, failures_ = 0, passing_ = 0;  // guarded by mu_
};

}  // namespace braidfs::client
