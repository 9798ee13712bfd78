// What a server's status means for a call: one table for every status and every kind of call. Pure
// functions.
//
// A call ends when its owner can use the status: success, a refusal that the application must see
// (no room), or one that the owner can deal with (a hole, another round, pieces that are sent
// again). A condition that passes by itself is tried again after a rest, until the call's deadline;
// so is one that a newer capability or view may cure. Everything else is an EIO. That includes a
// status that no server gives for this kind of call, and a number that nobody knows: a hostile
// server must not be able to make up an errno or a success.
#pragma once
#include <cstdint>

#include "braidfs/frame.h"
#include "braidfs/status.h"

namespace braidfs::client {

enum class Outcome : uint8_t {
  kTell,   // the owner gets the status
  kAgain,  // nothing was done: the call is tried again after a rest
  kRenew,  // as kAgain, and Python is asked for a newer view and capability meanwhile
  kFail,   // the owner gets EIO
};

// The outcomes of one status, by kind of call: read is READ, SEEK and FETCH; change is PUNCH and
// COPY.
struct Outcomes {
  Outcome read;
  Outcome write;
  Outcome change;
  Outcome sync;
};

constexpr Outcomes everywhere(Outcome outcome) noexcept {
  return {outcome, outcome, outcome, outcome};
}

// There is no default, so the compiler refuses a status that is not in the table.
constexpr Outcomes outcomes_of(Status status) noexcept {
  using enum Outcome;
  switch (status) {
    case Status::kOk:
      return everywhere(kTell);

    case Status::kNotReady:        // the server starts, or its lease has expired
    case Status::kBusy:            // the server's queues are full
    case Status::kUnknownSession:  // the server does not know this session yet
    case Status::kNoTarget:        // the target is not there yet, or has moved
    case Status::kChecksum:        // bytes were changed on their way
      return everywhere(kAgain);

    case Status::kBadCapability:
    case Status::kStaleMapEpoch:
    case Status::kDropped:             // the layout names this replica no longer
    case Status::kStaleTruncateEpoch:  // the owner gets it when the view has changed
                                       // (Lane::resend)
      return everywhere(kRenew);

    case Status::kStaleIncarnation:
      return {kFail, kFail, kFail, kTell};  // SYNC: what the target lost is sent again
    case Status::kBadRequest:
      return {kTell, kFail, kFail, kFail};  // FETCH: the server does not know it
    case Status::kNoObject:
      return {kTell, kFail, kFail, kTell};  // READ: a hole; SYNC: the object was removed
    case Status::kEnospc:
      return {kFail, kTell, kTell, kTell};
    case Status::kEfbig:
      return {kFail, kTell, kTell, kFail};
    case Status::kErofs:
      return {kFail, kTell, kTell, kTell};
    case Status::kEopnotsupp:
      return {kFail, kFail, kTell, kFail};

    case Status::kFenced:  // the session was evicted: none of its writes may be stored any more
    case Status::kEio:
    case Status::kCorrupt:
    case Status::kEnomem:
    case Status::kEintr:  // from here on: no server may say this of a file's bytes
    case Status::kEbadf:
    case Status::kEagain:
    case Status::kEinval:
    case Status::kEnosys:
    case Status::kEtimedout:
    case Status::kDisconnected:
    case Status::kAborted:
      return everywhere(kFail);
  }
  return everywhere(Outcome::kFail);
}

// The operation changes what an object holds.
constexpr bool changes(Op op) noexcept {
  return op == Op::kWrite || op == Op::kPunch || op == Op::kCopy;
}

// Whether the status says that the target has failed this object, or cannot store it: then a
// replica of several is dropped. `must_exist`: an object that is missing was lost.
constexpr bool fails_replica(Op op, Status status, bool must_exist) noexcept {
  switch (status) {
    case Status::kOk:
    case Status::kFenced:  // nothing of the session is stored anywhere
    case Status::kEnospc:
    case Status::kEfbig:
    case Status::kEopnotsupp:
      return false;
    case Status::kStaleIncarnation:
      return op != Op::kSync;
    case Status::kErofs:
      return true;
    case Status::kNoObject:
      return must_exist;
    default:
      return outcomes_of(status).write == Outcome::kFail;
  }
}

constexpr Outcome outcome_of(Op op, Status status) noexcept {
  const Outcomes outcomes = outcomes_of(status);
  if (op == Op::kWrite) return outcomes.write;
  if (op == Op::kSync) return outcomes.sync;
  return changes(op) ? outcomes.change : outcomes.read;
}

}  // namespace braidfs::client
