// One segment of a cache directory: a file of records, one behind another, and the index that says
// where they are.
//
// Its space on the disk is reserved when it is made. A segment is never overwritten: to make room
// it is removed as a whole, and reads under way keep the removed file until they end.
//
// Threads: `bytes` may be read by ANY THREAD; the rest is guarded by the store's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/format.h"
#include "cache/turnover.h"
#include "net/unique_fd.h"

namespace braidfs::cache {

struct Segment {
  uint32_t number = 0;
  net::UniqueFd bytes;         // with O_DIRECT where the filesystem has it
  uint64_t end = 0;            // end of the last record
  std::vector<SliceKey> keys;  // of its records, stale ones included
  size_t live = 0;             // number of records that the store's index names
  Turnover::Use use{};
};
using SegmentPtr = std::shared_ptr<Segment>;

// The files of a cache directory, by number of the segment. Results are 0 or -errno.
class Files {
 public:
  explicit Files(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const noexcept { return directory_; }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::vector<uint32_t> numbers() const;  // ascending
  int create(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const;
  // -EINVAL: the file does not have the size of a segment.
  int open(uint32_t number, uint64_t segment_bytes, net::UniqueFd& bytes) const;
  int open_index(uint32_t number, net::UniqueFd& index) const;
  std::vector<Placed> entries(uint32_t number, uint64_t segment_bytes) const;
  void remove(uint32_t number) const noexcept;

  int read_small(const std::string& name, std::vector<std::byte>& bytes) const;
  int write_small(const std::string& name, std::span<const std::byte> bytes) const;

 private:
  std::string segment_path(uint32_t number, const char* suffix) const;
  std::string directory_;
};

}  // namespace braidfs::cache
