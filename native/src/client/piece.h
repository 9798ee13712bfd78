// A written extent on its way to a target: a buffer with bytes inside one chunk. They are
// contiguous, but for a piece that gathers: there neighbours come out of order, and what is not
// filled when it is sealed are gaps (each part between them is a WRITE call; the piece is
// acknowledged with the last of them).
//
// Its life: filling (merges neighbours) -> queued (sealed) -> in flight -> held (acknowledged, kept
// until synced so that it can be sent again, rule 22) -> gone. It is in flight from the moment that
// this was decided, a little before its calls exist (is_sent). "Unsettled": filling, queued or in
// flight. It is the owner of its WRITE calls, so its buffer lives as long as they.
// Fields are guarded by the inode's mutex; the bytes of a sealed piece never change and may be read
// without it. Whole extents are what is compared and waited for, gaps included.
// Not here: which piece may be sent when (inode.h).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/call.h"
#include "client/memory.h"

namespace braidfs::client {

enum class PieceState : uint8_t { kFilling, kQueued, kInFlight, kHeld, kGone };

// Who waits for a piece that is written through. ANY LANE.
class PieceWaiter {
 public:
  virtual ~PieceWaiter() = default;
  virtual void piece_done(Lane& lane, int error) = 0;
};

// Of a piece: between two parts that were written. File offsets.
struct Gap {
  uint64_t begin;
  uint64_t end;
};

// How the WRITE calls of a piece ended, the worst of them. LANE ONLY, the one that sent them.
struct SendOutcome {
  uint32_t calls = 0;  // not ended
  Status status = Status::kOk;
  Status refusal = Status::kOk;  // Call::refusal
  uint64_t incarnation = 0;      // the oldest that acknowledged
};

struct Piece final : CallOwner, std::enable_shared_from_this<Piece> {
  static constexpr size_t kGapsMax = 32;
  static constexpr uint64_t kNotCut = ~uint64_t{0};

  uint64_t sequence = 0;  // of its last change, rising per inode
  uint64_t since =
      0;  // the oldest sequence of what it stands for: its own, or of what it overwrote whole
  PieceState state = PieceState::kFilling;
  uint64_t window = 0;    // file offset of the buffer's first byte
  uint32_t capacity = 0;  // how far the buffer may fill
  uint64_t begin = 0;     // written extent, file offsets
  uint64_t end = 0;
  bool gathers = false;
  std::vector<Gap> gaps{};  // of [begin, end), in order
  uint64_t chunk = 0;
  uint32_t stripe_index = 0;
  uint32_t target = 0;
  uint64_t incarnation = 0;      // of the target that acknowledged it
  uint64_t acknowledgement = 0;  // the number of that (piece_table.h)
  bool is_sent =
      false;  // it has WRITE calls that have not all ended: the last of them tells the waiter
  uint32_t sends = 0;         // since it was last acknowledged
  uint64_t cut_at = kNotCut;  // where the file was cut while it was in flight
  Clock::time_point first_written{};
  std::shared_ptr<PieceWaiter> waiter{};  // gets the error, which else stays with the inode
  Buffer buffer{};
  SendOutcome outcome{};

  uint64_t limit() const noexcept { return window + capacity; }
  bool unsettled() const noexcept { return state < PieceState::kHeld; }
  std::span<std::byte> bytes(uint64_t from, uint64_t to) const noexcept {
    return buffer.span().subspan(from - window, to - from);
  }
  // In whole blocks: writes of one block must not overtake one another.
  bool shares_block(uint64_t from, uint64_t to) const noexcept {
    constexpr uint64_t kMask = ~uint64_t{limits::kBlockSize - 1};
    return (from & kMask) < ((end + limits::kBlockSize - 1) & kMask) &&
           (begin & kMask) < ((to + limits::kBlockSize - 1) & kMask);
  }

  // Nothing is missing that somebody may be about to write.
  bool is_full() const noexcept {
    return end == limit() && gaps.empty() && (!gathers || begin == window);
  }
  // [from, to), at least its beginning, may be copied into it.
  bool may_take(uint64_t from, uint64_t to) const noexcept;
  // Some of it, or just before or behind it, was written.
  bool borders(uint64_t from, uint64_t to) const noexcept;
  // Was copied into it.
  void took(uint64_t from, uint64_t to);
  // What is from `size` on no longer exists; begin < size.
  void cut(uint64_t size) noexcept;
  // Its calls ended: what was cut off meanwhile goes.
  void landed() noexcept {
    if (cut_at < end) cut(cut_at);
    cut_at = kNotCut;
  }
  // Every byte of [from, to) was written.
  bool has_all(uint64_t from, uint64_t to) const noexcept;

  void call_done(Lane& lane, Call& call) override;  // pieces.cpp
};
using PiecePtr = std::shared_ptr<Piece>;

}  // namespace braidfs::client
