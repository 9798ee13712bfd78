// Where a file was cut that only this client may write, as long as the metaserver has not been told
// (docs/decisions/0058-cuts-told-later.md). Part of Inode, LOCKED by its mutex; what is done with
// it is in cuts.cpp.
//
// What lies behind the least of these sizes is void at the targets, until the metaserver has had
// them cut. So as long as there is one:
// - nothing that ends behind it is sent, and nothing at all while the metaserver is being told: a
// piece of
//   after the cut would be cut off with what was there before (PieceTable::bar);
// - no size is committed: one that has grown again would bring back what was cut off;
// - nothing behind it is read at the targets.
// Who waits for any of that has the metaserver told at once, and the file is cut here no more
// meanwhile (pauses): else it might never end.
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

  uint64_t pending = kNone;    // the least size since the metaserver was told last
  uint64_t under_way = kNone;  // what it is being told
  uint64_t reach = 0;          // of `pending`: what was there before ended here
  uint64_t reach_under_way = 0;
  Clock::time_point due{};  // when the metaserver is told of `pending` though nobody waits
  uint64_t number = 0;      // of the question that is under way, or was last
  uint64_t ended = 0;       // how many have been
  int error = 0;            // of the last one that ended
  uint32_t pauses = 0;      // who wants the file not to be cut here
  std::vector<std::shared_ptr<Operation>> waiting{};  // for the end of the next question

  uint64_t level() const noexcept { return std::min(pending, under_way); }
  bool unreported() const noexcept { return level() != kNone; }
  uint64_t bar() const noexcept { return under_way != kNone ? 0 : pending; }
};

// Of one operation that waits until the metaserver knows of every cut there is: LOCKED inode.
struct CutWait {
  bool began = false;
  uint64_t ended = 0;  // Cuts::ended when it began
  // True: `who` proceeds when the question that is under way was answered, which is `event` if that
  // is set and put. False: nothing is to be told, or (error) it could not be.
  bool wait(Inode& inode, std::shared_ptr<Operation> who, std::optional<Event>& event, int& error);
};

}  // namespace braidfs::client
