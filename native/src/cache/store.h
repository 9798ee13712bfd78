// A cache directory: slices of files in segments, found by inode, slice and stamp.
//
// The index is in memory; it is made from the segments' indexes when the directory is opened.
// Records are appended to the newest segment. When the directory is full, turnover.h decides which
// segment is replaced, if any. Nothing here is indispensable: an error of the disk, or a full disk,
// costs records and nothing else. One process uses a directory at a time (flock on its file
// `lock`), and it holds bytes of one filesystem.
//
// Threads: put() is called by one thread, the writer; everything else is ANY THREAD, guarded by
// mu_.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/disk.h"
#include "cache/segment.h"
#include "core/clock.h"

namespace braidfs::cache {

struct StoreSettings {
  static constexpr uint64_t kBytesMin = 64u << 20;
  std::string directory;
  uint64_t bytes_max = 0;  // at least kBytesMin
  // Bytes for copies of whole files (copies.h), in addition to bytes_max. 0: no copies.
  uint64_t copies_bytes_max = 0;
  std::array<std::byte, 16> cluster{};
};

// Bytes of a slice, lent until they are written. `place` begins on a page and has room for whole
// blocks.
struct Part {
  uint32_t begin = 0;  // offset in the slice
  uint32_t length = 0;
  std::span<std::byte> place;
  std::shared_ptr<void> owner;
};

struct Slice {
  SliceKey key;
  uint64_t stamp = 0;
  uint32_t length = 0;
  std::vector<Part> parts;  // the whole slice, in order
};

class Store {
 public:
  static constexpr size_t kRecordsMax = 2u << 20;  // about 100 bytes of memory each
  // After an error, nothing is written for so long.
  static constexpr auto kFaultRest = std::chrono::seconds(60);
  static constexpr size_t kRunSlicesMax = 64;
  static constexpr uint64_t kRunBytesMax = 8u << 20;

  struct Found {
    SegmentPtr segment;
    uint64_t offset = 0;  // offset of the head
    uint32_t length = 0;  // of the bytes
  };

  // Null on failure, with a sentence in `reason`.
  static std::unique_ptr<Store> open(const StoreSettings& settings, std::string& reason);

  // Finds a slice, which counts as a use of it. A record with another stamp is forgotten.
  std::optional<Found> find(const SliceKey& key, uint64_t stamp);
  // True when the slice would be written: it is not there, and there is room. Remembers a slice
  // without room.
  bool wants(const SliceKey& key, uint64_t stamp, uint32_t length);
  // True when the slice is there. Does not count as a use.
  bool has(const SliceKey& key, uint64_t stamp);
  // Reports that a record was not what it should be; it is forgotten.
  void corrupt(const SliceKey& key, const Found& found);
  // Writes slices. Returns how many were written; the others were there already, found no room, or
  // failed. Slices that lie side by side are one write, of at most kRunBytesMax and kRunSlicesMax.
  size_t put(std::span<const Slice> slices);

  struct Counts {
    uint64_t records = 0;
    uint64_t bytes = 0;  // of all segments
    uint64_t written = 0;
    uint64_t bytes_written = 0;
    uint64_t evicted = 0;  // records removed to make room
    uint64_t refused = 0;
    uint64_t corrupt = 0;
    uint64_t faults = 0;
  };
  Counts counts();

 private:
  struct Hash {
    size_t operator()(const SliceKey& key) const noexcept;
  };
  struct Entry {
    SegmentPtr segment;
    uint64_t stamp;
    uint32_t length;
    uint32_t block;
  };
  // Records that are written together: `slices`, from `begin` of the segment on.
  struct Run {
    SegmentPtr segment;
    uint64_t begin = 0;
    uint64_t end = 0;
    std::span<const Slice> slices;
  };
  using Index = std::unordered_map<SliceKey, Entry, Hash>;
  using Clock = braidfs::Clock;

  Store(const StoreSettings& settings, net::UniqueFd lock, uint64_t segment_bytes);
  void load();
  void load_segment(uint32_t number);
  void resume_last_segment();
  // ---- LOCKED ----
  void add_entry(const Placed& placed, const SegmentPtr& segment);
  void forget(Index::iterator entry);
  bool is_there(const SliceKey& key, uint64_t stamp) const;
  bool fits(uint32_t length) const;
  bool may_grow() const;
  // A segment that may be replaced for `length` bytes; the end iterator: there is none.
  std::map<uint32_t, SegmentPtr>::iterator replaceable(uint32_t length);
  void evict(std::map<uint32_t, SegmentPtr>::iterator which);
  void fault();

  // Reserves a place for the first slice, and for those behind it that can be written with it.
  // Without a segment: there is no place, or the slice is there already.
  Run reserve(std::span<const Slice> slices);
  bool fits_in_run(const Run& run, const Slice& slice);
  bool reserve_place(const Slice& slice);
  SegmentPtr new_segment();
  bool put(const Run& run);
  bool write(const Run& run, std::span<const Placed> placed);

  const Files files_;
  const net::UniqueFd lock_;
  const uint64_t segment_bytes_;
  const size_t segments_max_;

  std::mutex mu_;
  Index index_;                              // guarded by mu_
  std::map<uint32_t, SegmentPtr> segments_;  // guarded by mu_
  SegmentPtr writing_;                       // guarded by mu_; new records go to this one
  Turnover turnover_;                        // guarded by mu_
  bool any_empty_ = false;                   // guarded by mu_; a segment may have no live record
  Clock::time_point rests_until_{};          // guarded by mu_
  Counts counts_;                            // guarded by mu_

  // ---- WRITER ONLY ----
  net::UniqueFd index_file_;  // the index of writing_
  uint64_t index_end_ = 0;
  RecordHead* heads() noexcept { return reinterpret_cast<RecordHead*>(heads_.get()); }
  Pages heads_;  // room for kRunSlicesMax heads
};

}  // namespace braidfs::cache
