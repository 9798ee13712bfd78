// A written extent on its way to a target: a buffer with contiguous bytes inside one chunk.
//
// Its life: filling (merges neighbours) -> queued (sealed) -> in flight -> held (acknowledged, kept
// until synced so that it can be sent again, rule 22) -> gone. "Unsettled": filling, queued or in
// flight. It is the owner of its WRITE call, so its buffer lives as long as the call.
// Fields are guarded by the inode's mutex; the bytes of a sealed piece never change and may be read
// without it. Not here: which piece may be sent when (inode.h).
#pragma once
#include <cstdint>
#include <memory>
#include <span>

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

struct Piece final : CallOwner, std::enable_shared_from_this<Piece> {
  uint64_t sequence = 0;  // of its last change, rising per inode
  PieceState state = PieceState::kFilling;
  uint64_t window = 0;    // file offset of the buffer's first byte
  uint32_t capacity = 0;  // how far the buffer may fill
  uint64_t begin = 0;     // written extent, file offsets
  uint64_t end = 0;
  uint64_t chunk = 0;
  uint32_t stripe_index = 0;
  uint32_t target = 0;
  uint64_t incarnation = 0;  // of the target that acknowledged it
  Clock::time_point first_written{};
  std::shared_ptr<PieceWaiter> waiter{};  // gets the error, which else stays with the inode
  Buffer buffer{};

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

  void call_done(Lane& lane, Call& call) override;  // pieces.cpp
};
using PiecePtr = std::shared_ptr<Piece>;

}  // namespace braidfs::client
