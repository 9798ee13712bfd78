// A record of what this process has open, in memory that outlives the process as long as somebody
// holds its descriptor. If the process is killed, the next one opens the same files under the same
// handles, and knows which files had bytes that were not durable at their targets
// (docs/decisions/0034-survival.md).
//
// The memory is an array of rows of equal size; row 0 holds an upper bound of how many are in use.
// Invariant: a row counts while its kind is not kFree. The kind is written last and cleared first,
// so a kill at any instant leaves whole rows. Before make() nothing is recorded. Threads: ANY
// THREAD, guarded by mu_, a leaf. Not here: who reads the record in the next process (Python).
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
  // A row of kind kBacking says what an inode's handles pass through to (passthrough.h): `fh` is
  // the stamp, and `open_flags` is the backing id.
  struct Row {
    uint64_t fh = 0;
    uint64_t ino = 0;
    uint32_t open_flags = 0;
    uint32_t direct = 0;
    Kind kind = Kind::kFree;
    uint32_t reserved = 0;
  };
  using Slot = uint32_t;
  static constexpr Slot kNone = 0;                        // no row
  static constexpr uint64_t kMagic = 0x314e45504f465242;  // "BRFOPEN1"

  OpenRecord() = default;
  ~OpenRecord();
  OpenRecord(const OpenRecord&) = delete;
  OpenRecord& operator=(const OpenRecord&) = delete;

  // Makes the memory and returns its descriptor, which the caller owns, or -errno. It is called
  // once, before the first request.
  int make();

  Slot put(const Row& row) noexcept;
  void drop(Slot& slot) noexcept;
  void directory_opened(uint64_t fh, uint64_t ino);
  void directory_closed(uint64_t fh);

 private:
  std::mutex mu_;
  std::span<Row> rows_;     // the mapped memory
  std::vector<Slot> free_;  // free rows below next_
  Slot next_ = 1;
  std::unordered_map<uint64_t, Slot> directories_;  // by handle
};

}  // namespace braidfs::client
