// Passthrough: which open files the kernel reads by itself, from their whole copies in the local
// cache (docs/decisions/0041-passthrough.md).
//
// Rule 9: the kernel answers EIO if handles of one inode that use the page cache mix with handles
// that pass through, or if handles of one inode pass through to different files. So the first
// handle of an inode decides for those that are opened while it is open. The first handle makes the
// kernel open a backing id for the file of the copy, and the last one closes it. Invariant: a
// handle is counted from before the answer to its OPEN until its RELEASE, so the count is never
// less than what the kernel has open. Handle and Inode are not used here, since the kernel may
// still have a handle of the process before this one whose file could not be opened again.
//
// Threads: ANY THREAD, guarded by mu_. While it is held the first handle of a file costs two system
// calls, the last one costs one, and the locks of Copies and OpenRecord are taken.
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

// How the kernel opens and closes backing ids.
struct BackingCalls {
  std::function<int(int file)> open;  // returns the id, or -errno
  std::function<void(uint32_t id)> close;
};

class Passthrough {
 public:
  // What is known of a file when it is opened.
  struct Opened {
    cache::WholeFile file;
    uint64_t fh = 0;
    bool is_immutable = false;
    bool is_certain = true;  // is_immutable is known to be right
    bool is_leased = false;  // its bytes are leased: nobody changes them
    bool is_direct = false;  // only its mappings use the page cache
  };
  // The backing id of one inode, and the stamp of its copy. The process before this one may have
  // opened it.
  struct Backing {
    uint64_t ino = 0;
    uint32_t id = 0;
    uint64_t stamp = 0;
  };

  // copies: nullptr if there is no cache. Even then, what the kernel has open since the process
  // before this one is counted.
  Passthrough(cache::Copies* copies, OpenRecord& record, BackingCalls calls)
      : copies_(copies), record_(record), calls_(std::move(calls)) {}

  fuse::PassthroughChoice opened(const Opened& opened);
  void closed(uint64_t fh);

  // Takes over what the kernel has open since the process before this one. `handles` are pairs of a
  // handle and its inode. It is called before the first request.
  void adopt(const std::vector<Backing>& backings,
             const std::vector<std::pair<uint64_t, uint64_t>>& handles);
  std::vector<Backing> backings();

  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  struct Entry {
    uint32_t handles = 0;
    uint32_t id = 0;  // 0: the kernel sends requests
    cache::WholeFile file;
    bool uses_copy = false;  // Copies is told when the last handle is closed
    OpenRecord::Slot noted = OpenRecord::kNone;
  };

  // These need mu_.
  bool begin(Entry& entry, const Opened& opened);
  void note(Entry& entry);
  fuse::PassthroughChoice enter(Entry& entry, const Opened& opened);

  cache::Copies* const copies_;
  OpenRecord& record_;
  const BackingCalls calls_;
  std::mutex mu_;
  std::unordered_map<uint64_t, Entry> inodes_;      // guarded by mu_; those that have handles
  std::unordered_map<uint64_t, uint64_t> handles_;  // guarded by mu_; the inode of each handle
  uint64_t opens_ = 0, stale_ = 0, failures_ = 0, handles_with_backing_ = 0;  // guarded by mu_
};

}  // namespace braidfs::client
