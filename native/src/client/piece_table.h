// The written pieces of one inode: which pieces merge, which may be sent, which are held, and who
// waits for them.
//
// Order: of two pieces that share a block, the later one is not sent before the earlier one was
// acknowledged, so a target ends with what was written last. A held piece that its target lost is
// queued again under its old number, and so is each later held piece that shares a block with it.
// A piece that another one overwrote whole is forgotten when that one is acknowledged; whoever
// waits for the forgotten piece then waits for the other one, should its target lose it
// (Piece::since). Pieces beyond the bar (cuts.h) are sealed, but not sent. Acknowledgements are
// numbered: a SYNC makes durable what was acknowledged before it left, so it is known by the number
// of the last acknowledgement at that time. By sequence numbers it would seem to cover an older
// piece that was acknowledged, or sent again, while the SYNC was on its way. Invariants: a filling
// piece shares no block with another filling piece nor with any later piece; chunks_ has no piece
// that is gone. Threads: every method needs the inode's mutex. There is no I/O here.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "client/operation.h"
#include "client/piece.h"

namespace braidfs::client {

// What of one object, a replica of a stripe, is acknowledged and not durable.
struct ObjectState {
  Replica replica{};
  uint64_t synced = 0;                   // the last acknowledgement that a SYNC made durable
  uint64_t oldest_incarnation = 0;       // of its unsynced pieces, dropped ones included; 0: none
  uint64_t dropped_incarnation = 0;      // the oldest of pieces that are no longer held; 0: none
  uint64_t dropped_newest = 0;           // the newest incarnation of those pieces
  uint64_t dropped_acknowledgement = 0;  // the youngest of those pieces
  uint64_t since = 0;                    // the last acknowledgement before it came into the view
  // A SYNC without an incarnation would succeed at a target that lost what it was sent for. There
  // is no such SYNC: what is unsynced has an incarnation.
  bool unsynced() const noexcept { return oldest_incarnation != 0; }
  void forget_dropped() noexcept {
    dropped_incarnation = dropped_newest = dropped_acknowledgement = 0;
  }
};

// What has become possible, and the caller does without the lock (pieces.h: run_actions).
struct Actions {
  std::vector<PiecePtr> send;  // they are in flight from now on
  std::vector<std::shared_ptr<Operation>> proceed;
  std::vector<PiecePtr> released;                      // they are destroyed without the lock
  std::vector<std::shared_ptr<PieceWaiter>> given_up;  // by trim(); they get given_up_error
  int given_up_error = 0;
  // Something waits until the metaserver knows where the file was cut (cuts.h).
  bool report_cut = false;
  bool empty() const noexcept {
    return send.empty() && proceed.empty() && given_up.empty() && !report_cut;
  }
};

class PieceTable {
 public:
  static constexpr auto kAge = std::chrono::milliseconds(100);
  // The age of a piece that coalesces: ranks that write in turns come hundreds of milliseconds
  // apart.
  static constexpr auto kCoalescingAge = std::chrono::milliseconds(1000);

  // The file has this view now. What is known of a replica that is not in it any more is forgotten,
  // and so are held pieces that only such a replica had not made durable.
  void see(const FileView& view, Actions& actions);

  // ---- filling ----
  // The filling piece that [begin, end) may be merged into, at least its beginning; or nullptr.
  PiecePtr mergeable(uint64_t chunk, uint64_t begin, uint64_t end) const;
  // Bytes just beside it were written, and are not durable.
  bool borders(const Piece& piece) const noexcept;
  // The caller copied [begin, end) into the piece.
  void merged(const PiecePtr& piece, uint64_t begin, uint64_t end, Actions& actions);
  // Call it before a piece that coalesces is added: it seals the oldest such pieces until the
  // buffers of all, of kPieceMax each, fit into `bytes_max`.
  void make_way(uint64_t bytes_max, Actions& actions);
  // Adds a new piece, which is filling, and seals what is in its way.
  void add(const PiecePtr& piece, Actions& actions);
  void seal(const PiecePtr& piece, Actions& actions);
  void seal_all(Actions& actions) { seal_range(0, ~uint64_t{0}, actions); }
  void seal_range(uint64_t begin, uint64_t end, Actions& actions);
  // Seals the pieces that have been filling for long enough. False: some are still filling.
  bool seal_aged(Clock::time_point now, Actions& actions);

  // The piece that is [0, size), if it is the only one there is and still filling; or nullptr.
  PiecePtr only_filling(uint64_t size) const noexcept;

  // ---- waiting ----
  uint64_t sequence() const noexcept { return sequence_; }
  size_t unacknowledged() const noexcept { return unacknowledged_.size(); }
  uint64_t dirty_bytes() const noexcept { return dirty_bytes_; }
  bool empty() const noexcept { return chunks_.empty(); }
  // Whether no piece up to that number has bytes of [begin, end) that are unacknowledged.
  bool is_acknowledged(uint64_t sequence, uint64_t begin, uint64_t end) const;
  // The operation proceeds when is_acknowledged(sequence, begin, end) is true.
  void wait(std::shared_ptr<Operation> operation, uint64_t sequence, uint64_t begin, uint64_t end);
  // Lanes have ended: whoever waits, for a piece or for all of them, will not proceed any more.
  void take_waiters(std::vector<std::shared_ptr<void>>& waiters);

  // ---- ends of WRITE calls ----
  // By all replicas: Piece::acknowledged.
  void acknowledged(const PiecePtr& piece, Actions& actions);
  void refused(const PiecePtr& piece, Actions& actions);  // it is given up
  void send_again(const PiecePtr& piece, Actions& actions);

  // ---- held pieces and durability ----
  uint64_t acknowledgements() const noexcept { return acknowledgements_; }
  // By stripe index, as FileView::rows.
  const std::vector<ObjectState>& objects() const noexcept { return objects_; }
  bool unsynced() const noexcept;  // an object has bytes that are acknowledged and never synced
  void drop_held(const PiecePtr& piece, Actions& actions);  // the budget needs its place
  // The lease is returned: others may write there from now on, so nothing is sent again.
  void drop_all_held(Actions& actions);
  // A SYNC of this object has succeeded that left when acknowledgements() had this value. A piece
  // is held until each replica has made it durable.
  void synced(uint32_t stripe_index, const Replica& replica, uint64_t acknowledgements,
              Actions& actions);
  void target_lost(uint32_t target, uint64_t incarnation, Actions& actions);
  // Whether pieces of an older incarnation were dropped, whose bytes cannot be sent again.
  bool has_loss(uint32_t stripe_index, const Replica& replica, uint64_t incarnation);
  // Whether another replica has what this one has lost. One that came into the view later may be a
  // copy of it, made when it had lost that.
  bool another_has_it(uint32_t stripe_index, const Replica& replica) noexcept;
  // What was lost before this incarnation is given up; what the target has acknowledged since is
  // unsynced as before.
  void forget_loss(uint32_t stripe_index, const Replica& replica, uint64_t incarnation);
  // The inode has other objects now, of which none was written.
  void forget_objects();
  // No piece is sent that ends beyond `end`. kNoBar: all may be sent.
  static constexpr uint64_t kNoBar = ~uint64_t{0};
  void bar(uint64_t end) noexcept { bar_ = end; }
  // Sends what may be sent now, after pieces were trimmed or the bar was moved.
  void send_all_ready(Actions& actions);
  // The file ends at `size` now. Whoever waits for a piece behind that gets the error.
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
  static bool earlier_waits(const Piece& piece, const ChunkPieces& pieces) noexcept;
  static bool is_next(const Piece& piece, const ChunkPieces& pieces) noexcept;
  void seal_others(const ChunkPieces& pieces, const Piece& except, uint64_t begin, uint64_t end);
  bool note_acknowledged(Piece& piece);
  void drop_covered(Piece& by, ChunkPieces& pieces, Actions& actions);
  void note_dropped(const Piece& piece);
  void release(ChunkPieces& pieces, const PiecePtr& piece, Actions& actions);
  void send_ready(uint64_t chunk, Actions& actions);
  void wake(Actions& actions);
  void requeue(const ChunkPieces& pieces, uint32_t target, uint64_t incarnation);
  bool has_lost(const Piece& piece, uint32_t target, uint64_t incarnation) noexcept;
  ObjectState* object(uint32_t stripe_index, const Replica& replica) noexcept;
  std::span<ObjectState> objects_of(uint32_t stripe_index) noexcept;
  bool is_synced(const Piece& piece) noexcept;
  void drop_synced(Actions& actions);
  void recount_oldest();

  template <typename Fn>
  void each_chunk(uint64_t begin, uint64_t end, Fn fn);
  bool any_unacknowledged(uint64_t sequence, uint64_t begin, uint64_t end) const;

  uint32_t chunk_size_ = limits::kChunkSizeMax;
  std::map<uint64_t, ChunkPieces> chunks_;
  std::multiset<uint64_t> unacknowledged_;       // Piece::since of each of them
  std::deque<std::weak_ptr<Piece>> coalescing_;  // oldest first; some may be sealed by now
  uint64_t dirty_bytes_ = 0;
  uint64_t bar_ = kNoBar;
  uint64_t sequence_ = 0;
  uint64_t acknowledgements_ = 0;
  uint32_t places_ = 1;
  std::vector<ObjectState> objects_;
  std::vector<Waiter> waiters_;
};

}  // namespace braidfs::client
