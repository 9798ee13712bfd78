// The unreported cuts of a file: sizes that lanes gave it, since only this client may write it, and
// that the metaserver does not know yet (docs/decisions/0058-cuts-told-later.md). A CUT event
// reports them. Part of Inode. Threads: LOCKED by the inode's mutex.
//
// What lies behind the least of these sizes is void at the targets until the metaserver has had
// them cut. Invariant: as long as there is an unreported cut,
// - no piece that ends behind it is sent, and no piece at all while a report is under way: a piece
//   that was written after the cut would be cut off with what was there before (PieceTable::bar);
// - no size is committed: a size that has grown again would bring back what was cut off;
// - nothing behind it is read from the targets.
// Whoever waits for one of these has the cut reported at once. Meanwhile lanes do not cut the file
// again (pauses), else the wait might never end.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/events.h"
#include "client/operation.h"
#include "client/piece.h"

namespace braidfs::client {

class Inode;

struct Cuts {
  static constexpr uint64_t kNone = ~uint64_t{0};

  uint64_t pending = kNone;    // the least size since the last report
  uint64_t under_way = kNone;  // the size in the report that is under way
  uint64_t reach = 0;          // where the file ended before it was cut to `pending`
  uint64_t reach_under_way = 0;
  Clock::time_point due{};  // when `pending` is reported though nobody waits
  uint64_t number = 0;      // of the report that is under way, or of the last one
  uint64_t ended = 0;       // how many reports have been answered
  int error = 0;            // of the last report that was answered
  uint32_t pauses = 0;      // how many operations want the file not to be cut here
  std::vector<std::shared_ptr<Operation>> waiting{};  // for the answer to the next report

  uint64_t level() const noexcept { return std::min(pending, under_way); }
  bool unreported() const noexcept { return level() != kNone; }
  uint64_t bar() const noexcept { return under_way != kNone ? 0 : pending; }
};

// One operation's wait until the metaserver knows every cut that there is. LOCKED inode.
struct CutWait {
  bool began = false;
  uint64_t ended = 0;  // Cuts::ended when it began
  // True: `who` proceeds when the report that is under way was answered; if `event` is set, that is
  // the report, and the caller puts it. False: nothing is unreported, or reporting failed (error).
  bool wait(Inode& inode, std::shared_ptr<Operation> who, std::optional<Event>& event, int& error);
};

}  // namespace braidfs::client
