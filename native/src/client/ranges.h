// Operations on a range of a file that Python asks for and that are neither READ nor WRITE: PUNCH
// makes a hole, which is durable before it is answered, and SEEK finds holes and data.
//
// Python drains the inode first. Meanwhile the kernel keeps other writers of this client away,
// since it holds the inode's lock during fallocate. The range corresponds to one extent of each
// object, since chunks are packed densely; the calls of all stripes are in flight together.
// Threads: one at a time, the lane that issued the calls. Not here: SYNC and repetition of a PUNCH
// (durable_range.h).
#pragma once
#include <cstdint>

#include "client/durable_range.h"

namespace braidfs::client {

// The object offset, in the object of this stripe, of the first byte at or behind file offset
// `from`.
uint64_t object_offset_from(const FileView& view, uint32_t stripe_index, uint64_t from) noexcept;
// The file offset of an object offset.
uint64_t file_offset_of(const FileView& view, uint32_t stripe_index, uint64_t at) noexcept;

// It ends with DONE(token, status).
class PunchOperation final : public DurableRangeOperation {
 public:
  static void start(Lane& lane, uint64_t token, InodePtr inode, uint64_t begin, uint64_t end);
  PunchOperation(uint64_t token, InodePtr inode, uint64_t begin, uint64_t end);

 protected:
  int change(Lane& lane) override;
  // A truncate in between changes the layout, but not what is to be a hole.
  bool goes_again(Status status) const override {
    return status == Status::kStaleIncarnation || status == Status::kStaleTruncateEpoch;
  }

 private:
  const uint64_t begin_;
  const uint64_t end_;
};

// It ends with DONE(token, status, the file offset found), or kNothing if nothing was found.
class SeekOperation final : public Operation {
 public:
  static constexpr int64_t kNothing = -1;
  static constexpr uint32_t kRoundsMax = 16;

  static void start(Lane& lane, uint64_t token, InodePtr inode, uint64_t from, bool hole);
  SeekOperation(uint64_t token, InodePtr inode, uint64_t from, bool hole);
  void proceed(Lane& lane) override;
  void call_done(Lane& lane, Call& call) override;

 private:
  bool wait_for_pieces(Lane& lane);
  void seek_inline(Lane& lane);
  void ask(Lane& lane, uint32_t stripe_index, uint64_t offset);
  void found(uint32_t stripe_index, uint64_t at);
  void advance(Lane& lane);

  const uint64_t token_;
  const InodePtr inode_;
  const uint64_t from_;
  const bool hole_;
  FileViewPtr view_;
  uint64_t nearest_ = ~uint64_t{0};
  uint64_t losses_ = 0;
  uint32_t pending_ = 0;
  uint32_t rounds_ = 0;
  bool again_ = false;
  int error_ = 0;
};

}  // namespace braidfs::client
