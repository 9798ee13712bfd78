// The written pieces of one inode: what merges, what may be sent, what is held, who waits.
//
// Order: of two pieces that share a block, the later one is not sent before the earlier one was
// acknowledged, so targets end with what was written last. A held piece that a target lost is
// queued again under its old number, and so is every later held piece that shares a block with it.
// What an acknowledged piece overwrote whole is forgotten, and so whoever waits for that waits for
// the piece instead, should its target lose it (Piece::since). A bar (cuts.h) holds back what lies
// beyond it: it is sealed, but not sent. Acknowledgements are numbered. A SYNC makes durable what
// was acknowledged before it left, and so it is known by the number that the last acknowledgement
// had then: by sequence numbers it would be taken to cover an older piece that was acknowledged (or
// sent again) while it was on its way. Invariants: filling pieces share no block with one another
// nor with any later piece; chunks_ holds no piece that is gone. Pure bookkeeping: no I/O. Every
// method needs the inode's mutex.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "client/operation.h"
#include "client/piece.h"

namespace braidfs::client {

// Where an object stands between acknowledged and durable.
struct StripeState {
  uint64_t oldest_incarnation = 0;       // among unsynced pieces, dropped ones included; 0: none
  uint64_t dropped_incarnation = 0;      // oldest among pieces no longer held; 0: none
  uint64_t dropped_acknowledgement = 0;  // youngest of those
  // A SYNC that names no incarnation would succeed at a target that lost what it is for: there is
  // none such, since nothing is unsynced without an incarnation.
  bool unsynced() const noexcept { return oldest_incarnation != 0; }
};

// What became possible: for the caller to do without the lock (pieces.h: perform).
struct Actions {
  std::vector<PiecePtr> send;  // in flight from now on
  std::vector<std::shared_ptr<Operation>> proceed;
  std::vector<PiecePtr> released;                      // let go outside the lock
  std::vector<std::shared_ptr<PieceWaiter>> given_up;  // by trim(), with that error
  int given_up_error = 0;
  bool tell_cut =
      false;  // something waits until the metaserver knows where the file was cut (cuts.h)
  bool empty() const noexcept {
    return send.empty() && proceed.empty() && given_up.empty() && !tell_cut;
  }
};

class PieceTable {
 public:
  static constexpr auto kAge = std::chrono::milliseconds(100);
  // Of what gathers: ranks that write in turns were seen to be hundreds of milliseconds apart.
  static constexpr auto kGatheringAge = std::chrono::milliseconds(1000);

  void geometry(uint32_t stripe_width, uint32_t chunk_size) {
    stripes_.resize(stripe_width);
    chunk_size_ = chunk_size;
  }

  // ---- filling ----
  // The filling piece that [begin, end) may be merged into, at least its beginning; or nullptr.
  PiecePtr mergeable(uint64_t chunk, uint64_t begin, uint64_t end) const;
  // Something was written just beside it, and is not durable.
  bool borders(const Piece& piece) const noexcept;
  // The caller copied [begin, end) into the piece.
  void merged(const PiecePtr& piece, uint64_t begin, uint64_t end, Actions& actions);
  // Before one more that gathers is added: seals the oldest ones that do, until their buffers and
  // its own (of kPieceMax each) fit into `bytes_max`.
  void make_way(uint64_t bytes_max, Actions& actions);
  // A new piece, filling; seals what is in its way.
  void add(const PiecePtr& piece, Actions& actions);
  void seal(const PiecePtr& piece, Actions& actions);
  void seal_all(Actions& actions) { seal_range(0, ~uint64_t{0}, actions); }
  void seal_range(uint64_t begin, uint64_t end, Actions& actions);
  // Seals what has been filling for long enough. False: some pieces are still filling.
  bool seal_aged(Clock::time_point now, Actions& actions);

  // The piece that is [0, size), if it is the only one there is and still filling; or nullptr.
  PiecePtr only_filling(uint64_t size) const noexcept;

  // ---- waiting ----
  uint64_t sequence() const noexcept { return sequence_; }
  size_t unsettled() const noexcept { return unsettled_.size(); }
  uint64_t dirty_bytes() const noexcept { return dirty_bytes_; }
  bool empty() const noexcept { return chunks_.empty(); }
  bool is_settled(uint64_t sequence, uint64_t begin, uint64_t end) const;
  // The operation proceeds once is_settled(sequence, begin, end).
  void wait(std::shared_ptr<Operation> operation, uint64_t sequence, uint64_t begin, uint64_t end);
  // Lanes have ended: whoever waits, for a piece or for all of them, will not proceed any more.
  void take_waiters(std::vector<std::shared_ptr<void>>& waiters);

  // ---- ends of WRITE calls ----
  void acknowledged(const PiecePtr& piece, uint64_t incarnation, Actions& actions);
  void refused(const PiecePtr& piece, Actions& actions);  // given up
  void send_again(const PiecePtr& piece, Actions& actions);

  // ---- held pieces and durability ----
  uint64_t acknowledgements() const noexcept { return acknowledgements_; }
  std::vector<StripeState>& stripes() noexcept { return stripes_; }
  bool unsynced() const noexcept;  // some object has bytes that were acknowledged and never synced
  void drop_held(const PiecePtr& piece, Actions& actions);  // the budget needs its place
  // The lease is returned: from now on others may have written there, and nothing is sent again.
  void drop_all_held(Actions& actions);
  // A SYNC that left when acknowledgements() was that.
  void synced(uint32_t stripe_index, uint64_t acknowledgements, Actions& actions);
  void target_lost(uint32_t target, uint64_t incarnation, Actions& actions);
  // True when pieces of an older incarnation were dropped: their bytes cannot be sent again. Once.
  bool take_loss(uint32_t stripe_index, uint64_t incarnation);
  // The inode has other objects now: none of them was written.
  void forget_stripes();
  // Nothing is sent that ends beyond it; kNoBar: all may be.
  static constexpr uint64_t kNoBar = ~uint64_t{0};
  void bar(uint64_t end) noexcept { bar_ = end; }
  // Something was trimmed or the bar was moved: what may be sent now is.
  void settle_all(Actions& actions);
  // Bytes from `size` on no longer exist. Who waits for one of them to be written gets the error.
  void trim(uint64_t size, Actions& actions, int error = 0);

 private:
  using ChunkPieces = std::vector<PiecePtr>;  // by sequence, unless merged since
  struct Waiter {
    uint64_t sequence;
    uint64_t begin;
    uint64_t end;
    std::shared_ptr<Operation> operation;
  };

  void set_state(const PiecePtr& piece, PieceState state);
  void renumber(const PiecePtr& piece);
  static bool is_next(const Piece& piece, const ChunkPieces& pieces) noexcept;
  void seal_others(const ChunkPieces& pieces, const Piece& except, uint64_t begin, uint64_t end);
  void drop_covered(Piece& by, ChunkPieces& pieces, Actions& actions);
  void note_dropped(const Piece& piece);
  void release(ChunkPieces& pieces, const PiecePtr& piece, Actions& actions);
  void settle(uint64_t chunk, Actions& actions);
  void wake(Actions& actions);
  void requeue(const ChunkPieces& pieces, uint32_t target, uint64_t incarnation);
  void recount_oldest(uint32_t stripe_index);

  template <typename Fn>
  void each_chunk(uint64_t begin, uint64_t end, Fn fn);
  bool any_unsettled(uint64_t sequence, uint64_t begin, uint64_t end) const;

  uint32_t chunk_size_ = limits::kChunkSizeMax;
  std::map<uint64_t, ChunkPieces> chunks_;
  std::multiset<uint64_t> unsettled_;           // since when they are: Piece::since
  std::deque<std::weak_ptr<Piece>> gathering_;  // oldest first; some may be sealed by now
  uint64_t dirty_bytes_ = 0;
  uint64_t bar_ = kNoBar;
  uint64_t sequence_ = 0;
  uint64_t acknowledgements_ = 0;
  std::vector<StripeState> stripes_;
  std::vector<Waiter> waiters_;
};

}  // namespace braidfs::client
