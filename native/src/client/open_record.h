// What is open here, in memory that outlives this process as long as somebody holds its descriptor:
// if this process is killed, the next one opens the same files under the same handles, and knows
// which had bytes that no target had made durable (docs/decisions/0034-survival.md).
//
// Rows of kRowSize bytes; row 0 says how many are in use, at most. A row counts while its kind is
// not kFree, which is written last and cleared first, so a kill at any instant leaves whole rows.
// Threads: ANY THREAD, guarded by mu_, a leaf. Until make() nothing is noted.
#pragma once
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "net/unique_fd.h"

namespace braidfs::client {

class OpenRecord {
 public:
  enum class Kind : uint32_t { kFree = 0, kHandle = 1, kDirectory = 2, kUnclean = 3, kBacking = 4 };
  // Of kBacking, what an inode's handles pass through to (passthrough.h): fh is its stamp,
  // open_flags its id.
  struct Row {
    uint64_t fh = 0;
    uint64_t ino = 0;
    uint32_t open_flags = 0;
    uint32_t direct = 0;
    Kind kind = Kind::kFree;
    uint32_t reserved = 0;
  };
  using Slot = uint32_t;
  static constexpr Slot kNone = 0;                        // not noted
  static constexpr uint64_t kMagic = 0x314e45504f465242;  // "BRFOPEN1"

  OpenRecord() = default;
  ~OpenRecord();
  OpenRecord(const OpenRecord&) = delete;
  OpenRecord& operator=(const OpenRecord&) = delete;

  // Once, before the first request. The memory's descriptor, which is the caller's; or -errno.
  int make();

  Slot put(const Row& row) noexcept;
  void drop(Slot& slot) noexcept;
  void directory_opened(uint64_t fh, uint64_t ino);
  void directory_closed(uint64_t fh);

 private:
  std::mutex mu_;
  std::span<Row> rows_;     // of the mapped memory
  std::vector<Slot> free_;  // below next_
  Slot next_ = 1;
  std::unordered_map<uint64_t, Slot> directories_;  // by handle
};

}  // namespace braidfs::client
