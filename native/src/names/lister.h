// READDIRPLUS answered by lanes: from a directory's listing (dentry_table.h) and the attributes of
// each name, both under leases. An answer ends before the first name that is not known; if that is
// the very first, Python answers. ANY THREAD.
#pragma once
#include <linux/fuse.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "fuse/session.h"
#include "names/dentry_table.h"
#include "names/known.h"

namespace braidfs::names {

// The body of a reply with the names so far.
class Dirents;

class Lister {
 public:
  using Clock = DentryTable::Clock;
  using Send = std::function<void(std::span<const std::byte> body)>;
  // Cookies of "." and "..", as in fsclient/fs/directories.py.
  static constexpr uint64_t kSelfCookie = 1, kParentCookie = 2;

  Lister(Known known, DentryTable& dentries, fuse::DataHandler& file_bytes,
         fuse::FuseSession& session)
      : known_(known), dentries_(dentries), file_bytes_(file_bytes), session_(session) {}

  // Before the first request.
  void root(uint64_t ino) noexcept { root_ino_ = ino; }

  // Answers with the names behind the offset, in at most `size` bytes: send() is called while the
  // directory's names cannot be recalled. False: it was not called.
  bool read(uint64_t directory, uint64_t offset, uint32_t size, const Send& send);
  uint64_t answered() const noexcept { return answered_.load(std::memory_order_relaxed); }

 private:
  bool add_dots(Dirents& dirents, uint64_t directory, uint64_t offset, Clock::time_point now) const;
  DentryTable::Given add(Dirents& dirents, const DentryTable::Row& row,
                         std::chrono::nanoseconds valid, Clock::time_point now) const;
  uint64_t nodeid(uint64_t ino) const noexcept { return ino == root_ino_ ? FUSE_ROOT_ID : ino; }

  Known known_;
  DentryTable& dentries_;
  fuse::DataHandler& file_bytes_;
  fuse::FuseSession& session_;
  uint64_t root_ino_ = FUSE_ROOT_ID;
  std::atomic<uint64_t> answered_{0};
};

}  // namespace braidfs::names
