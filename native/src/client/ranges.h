// Work on a range of a file that is neither READ nor WRITE, asked for by Python: making holes
// (PUNCH, made durable before it is done) and finding them (SEEK).
//
// Python drains the inode first; the kernel keeps other writers of this client away meanwhile (it
// holds the inode's lock during fallocate). The range is mapped to one extent of each object, since
// chunks are packed densely; the calls of all stripes are in flight together.
// One thread at a time: the lane that issued the calls.
#pragma once
#include <cstdint>

#include "client/durable_range.h"

namespace braidfs::client {

// Where file offset `from` or the first byte behind it lies in the object of a stripe.
uint64_t object_offset_from(const FileView& view, uint32_t stripe_index, uint64_t from) noexcept;
// The file offset of an object offset.
uint64_t file_offset_of(const FileView& view, uint32_t stripe_index, uint64_t at) noexcept;

// → DONE(token, status)
class PunchOperation final : public DurableRangeOperation {
 public:
  static void start(Lane& lane, uint64_t token, InodePtr inode, uint64_t begin, uint64_t end);
  PunchOperation(uint64_t token, InodePtr inode, uint64_t begin, uint64_t end);

 protected:
  int change(Lane& lane) override;
  // A truncate that came between changes the layout, not what is to be a hole.
  bool goes_again(Status status) const override {
    return status == Status::kStaleIncarnation || status == Status::kStaleTruncateEpoch;
  }

 private:
  const uint64_t begin_;
  const uint64_t end_;
};

// → DONE(token, status, file offset found): kNothing when there is nothing behind `from`.
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
