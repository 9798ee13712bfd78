// A written extent on its way to a target: a buffer with bytes of one chunk. The bytes are
// contiguous, except in a piece that coalesces: its neighbours come out of order, and what nobody
// has filled when it is sealed are gaps. Each part between two gaps is a WRITE call, and the piece
// is acknowledged with the last of them.
//
// A piece goes to every replica of its stripe, and is acknowledged when all replicas of the view
// that is then known have acknowledged it. It remembers which ones have: when the view changes, or
// one of them loses it, it is sent again to the others only, after all its calls have ended.
//
// Its states: filling (it merges neighbours) -> queued (sealed) -> in flight -> held (acknowledged,
// and kept until it is synced, so that it can be sent again, rule 22) -> gone. A piece is in flight
// from the moment of that decision on, which is a little before its calls exist (is_sent).
// "Unacknowledged" means filling, queued or in flight. A piece owns its WRITE calls, so its buffer
// lives as long as they do. Invariant: the bytes of a sealed piece never change, and may be read
// without the mutex. Extents are compared and waited for as a whole, gaps included. Threads: fields
// are guarded by the inode's mutex. Not here: which piece may be sent when (piece_table.h).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/acknowledged.h"
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

// What lies between two written parts of a piece, by file offsets.
struct Gap {
  uint64_t begin;
  uint64_t end;
};

// How a piece's WRITE calls ended. LANE ONLY, the lane that sent them.
struct SendOutcome {
  // Of the calls to one replica.
  struct One {
    Replica replica{};
    bool is_refused = false;
    uint64_t incarnation = 0;  // the oldest one that acknowledged a call
  };
  std::array<One, limits::kReplicaPlacesMax> ones{};
  uint32_t count = 0;
  uint32_t calls = 0;  // that have not ended
  // Of the worst one.
  Status status = Status::kOk;
  Status refusal = Status::kOk;  // Call::refusal
  uint32_t target = 0;

  std::span<One> to() noexcept { return std::span(ones).first(count); }
};

struct Piece final : CallOwner, std::enable_shared_from_this<Piece> {
  static constexpr size_t kGapsMax = 32;
  static constexpr uint64_t kNotCut = ~uint64_t{0};

  uint64_t sequence = 0;  // the number of its last change; numbers rise within an inode
  // The oldest sequence that it stands for: its own, or that of a piece that it overwrote whole.
  uint64_t since = 0;
  PieceState state = PieceState::kFilling;
  uint64_t window = 0;    // file offset of the buffer's first byte
  uint32_t capacity = 0;  // how far the buffer may fill
  uint64_t begin = 0;     // written extent, file offsets
  uint64_t end = 0;
  bool coalesces = false;
  std::vector<Gap> gaps{};  // of [begin, end), in order
  uint64_t chunk = 0;
  uint32_t stripe_index = 0;
  uint64_t file_id = 0;  // of the objects that `acknowledged` is about
  Acknowledged acknowledged{};
  uint64_t acknowledgement = 0;  // the number of the last one (piece_table.h)
  // It has WRITE calls that have not all ended. The last of them answers the waiter.
  bool is_sent = false;
  uint32_t sends = 0;         // since it was acknowledged last
  uint64_t cut_at = kNotCut;  // where the file was cut while it was in flight
  Clock::time_point first_written{};
  std::shared_ptr<PieceWaiter> waiter{};  // gets the error; without one the inode keeps it
  Buffer buffer{};
  SendOutcome outcome{};
  std::vector<uint64_t> sums{};  // of its WRITEs, if they go to several replicas

  // Its next calls go to the replicas of the view that have not acknowledged it.
  void aim(const FileView& view) noexcept;
  uint64_t limit() const noexcept { return window + capacity; }
  bool unacknowledged() const noexcept { return state < PieceState::kHeld; }
  std::span<std::byte> bytes(uint64_t from, uint64_t to) const noexcept {
    return buffer.span().subspan(from - window, to - from);
  }
  // Compares whole blocks, since writes of one block must not overtake each other.
  bool shares_block(uint64_t from, uint64_t to) const noexcept {
    constexpr uint64_t kMask = ~uint64_t{limits::kBlockSize - 1};
    return (from & kMask) < ((end + limits::kBlockSize - 1) & kMask) &&
           (begin & kMask) < ((to + limits::kBlockSize - 1) & kMask);
  }

  // There is no place left in it that somebody may be about to write.
  bool is_full() const noexcept {
    return end == limit() && gaps.empty() && (!coalesces || begin == window);
  }
  // At least the beginning of [from, to) may be copied into it.
  bool may_take(uint64_t from, uint64_t to) const noexcept;
  // It has bytes of [from, to), or bytes just before or behind that.
  bool borders(uint64_t from, uint64_t to) const noexcept;
  // The caller has copied [from, to) into it.
  void took(uint64_t from, uint64_t to);
  // The file ends at `size` now, which is behind the piece's beginning.
  void cut(uint64_t size) noexcept;
  // Its calls have ended: bytes that were cut off while it was in flight go.
  void calls_ended() noexcept {
    if (cut_at < end) cut(cut_at);
    cut_at = kNotCut;
  }
  // It has every byte of [from, to).
  bool has_all(uint64_t from, uint64_t to) const noexcept;

  void call_done(Lane& lane, Call& call) override;  // pieces.cpp
};
using PiecePtr = std::shared_ptr<Piece>;

}  // namespace braidfs::client
