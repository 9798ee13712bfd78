// A cache directory: slices of files in segments, found by inode, slice and stamp.
//
// The index is in memory, made from the segments' own when the directory is opened. Records go to
// the end of the youngest segment. When the directory is full, turnover.h says which segment goes,
// if any does. Nothing here is needed: an error of the disk, or a full one, costs records and never
// more. One process has a directory at a time (flock on its file `lock`), and one file system's
// bytes are in it. Threads: put() on one thread, the writer's; everything else ANY THREAD, guarded
// by mu_.
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

namespace braidfs::cache {

struct StoreSettings {
  static constexpr uint64_t kBytesMin = 64u << 20;
  std::string directory;
  uint64_t bytes_max = 0;  // at least kBytesMin
  uint64_t copies_bytes_max =
      0;  // beside that, for copies of whole files (copies.h); 0: there are none
  std::array<std::byte, 16> cluster{};
};

// Bytes of a slice that somebody lends until they are written. place: begins on a page, with room
// for whole blocks.
struct Part {
  uint32_t begin = 0;  // in the slice
  uint32_t length = 0;
  std::span<std::byte> place;
  std::shared_ptr<void> owner;
};

struct Slice {
  SliceKey key;
  uint64_t stamp = 0;
  uint32_t length = 0;
  std::vector<Part> parts;  // the whole of it, in order
};

class Store {
 public:
  static constexpr size_t kRecordsMax = 2u << 20;               // some 100 bytes of memory each
  static constexpr auto kFaultRest = std::chrono::seconds(60);  // nothing is written after an error
  static constexpr size_t kRunSlicesMax = 64;
  static constexpr uint64_t kRunBytesMax = 8u << 20;

  struct Found {
    SegmentPtr segment;
    uint64_t offset = 0;  // of the head
    uint32_t length = 0;  // of the bytes
  };

  // Null, and a sentence.
  static std::unique_ptr<Store> open(const StoreSettings& settings, std::string& reason);

  // Counts as a use of it. A record of another stamp is forgotten.
  std::optional<Found> find(const SliceKey& key, uint64_t stamp);
  // Whether it would be written: it is not there, and finds room. Remembers what does not.
  bool wants(const SliceKey& key, uint64_t stamp, uint32_t length);
  // Counts as no use.
  bool has(const SliceKey& key, uint64_t stamp);
  // It was not what it is to be.
  void corrupt(const SliceKey& key, const Found& found);
  // How many were written: the others are there, found no room, or could not be. Those that lie
  // side by side are one write, of at most kRunBytesMax and kRunSlicesMax.
  size_t put(std::span<const Slice> slices);

  struct Counts {
    uint64_t records = 0;
    uint64_t bytes = 0;  // of segments
    uint64_t written = 0;
    uint64_t bytes_written = 0;
    uint64_t evicted = 0;  // records that made room
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
  // Records that are written together: `slices` of them, from `begin` of the segment on.
  struct Run {
    SegmentPtr segment;
    uint64_t begin = 0;
    uint64_t end = 0;
    std::span<const Slice> slices;
  };
  using Index = std::unordered_map<SliceKey, Entry, Hash>;
  using Clock = std::chrono::steady_clock;

  Store(const StoreSettings& settings, net::UniqueFd lock, uint64_t segment_bytes);
  void load();
  void load_segment(uint32_t number);
  void go_on_writing();
  // LOCKED
  void enter(const Placed& placed, const SegmentPtr& segment);
  void forget(Index::iterator entry);
  bool is_there(const SliceKey& key, uint64_t stamp) const;
  bool fits(uint32_t length) const;
  bool may_grow() const;
  // A segment that may make room for so many bytes; the end: there is none.
  std::map<uint32_t, SegmentPtr>::iterator replaceable(uint32_t length);
  void evict(std::map<uint32_t, SegmentPtr>::iterator which);
  void fault();

  // Where the first of them goes, and those behind it that go with it. No segment: nowhere, or it
  // is there.
  Run reserve(std::span<const Slice> slices);
  bool goes_with(const Run& run, const Slice& slice);
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
  SegmentPtr writing_;                       // guarded by mu_: the one that records go to
  Turnover turnover_;                        // guarded by mu_
  bool any_empty_ = false;                   // guarded by mu_: a segment has perhaps no live record
  Clock::time_point rests_until_{};          // guarded by mu_
  Counts counts_;                            // guarded by mu_

  // WRITER ONLY
  net::UniqueFd index_file_;  // of writing_
  uint64_t index_end_ = 0;
  RecordHead* heads() noexcept { return reinterpret_cast<RecordHead*>(heads_.get()); }
  Pages heads_;  // kRunSlicesMax
};

}  // namespace braidfs::cache
