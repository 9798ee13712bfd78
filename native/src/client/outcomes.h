// What a server's status means for a call: one table, for every status and every kind of call.
// Pure.
//
// A call ends with what its owner can make something of: success, a refusal that the application is
// to see (no room), or one that the owner has an answer to (a hole, another round, pieces that are
// sent anew). What passes by itself is asked again after a rest, until the call's deadline; so is
// what a newer capability or view may heal. Everything else is an EIO, and so are statuses that no
// server gives for that kind of call and numbers that nobody knows: a hostile server must not make
// an errno up, nor a success.
#pragma once
#include <cstdint>

#include "braidfs/frame.h"
#include "braidfs/status.h"

namespace braidfs::client {

enum class Outcome : uint8_t {
  kTell,   // the owner gets the status
  kAgain,  // nothing was done: again after a rest
  kRenew,  // the same, and Python is asked for a newer view and capability meanwhile
  kFail,   // the owner gets EIO
};

// Calls of one kind: READ, SEEK and FETCH | WRITE | PUNCH and COPY | SYNC.
struct Outcomes {
  Outcome read;
  Outcome write;
  Outcome change;
  Outcome sync;
};

constexpr Outcomes everywhere(Outcome outcome) noexcept {
  return {outcome, outcome, outcome, outcome};
}

// No default: the compiler refuses a status that is not in the table.
constexpr Outcomes outcomes_of(Status status) noexcept {
  using enum Outcome;
  switch (status) {
    case Status::kOk:
      return everywhere(kTell);

    case Status::kNotReady:        // it starts, or its lease ran out
    case Status::kBusy:            // its queues are full
    case Status::kUnknownSession:  // it has not heard of this session yet
    case Status::kNoTarget:        // the target is not there yet, or has moved
    case Status::kChecksum:        // bytes were changed on their way
      return everywhere(kAgain);

    case Status::kBadCapability:
    case Status::kStaleMapEpoch:
    case Status::kStaleTruncateEpoch:  // ends to its owner once the view is another one
                                       // (Lane::resend)
      return everywhere(kRenew);

    case Status::kStaleIncarnation:
      return {kFail, kFail, kFail, kTell};  // what it lost is sent again
    case Status::kBadRequest:
      return {kTell, kFail, kFail, kFail};  // it does not know FETCH
    case Status::kNoObject:
      return {kTell, kFail, kFail, kTell};  // a hole; removed meanwhile
    case Status::kEnospc:
      return {kFail, kTell, kTell, kTell};
    case Status::kEfbig:
      return {kFail, kTell, kTell, kFail};
    case Status::kErofs:
      return {kFail, kTell, kTell, kTell};
    case Status::kEopnotsupp:
      return {kFail, kFail, kTell, kFail};

    case Status::kFenced:  // the session was evicted: what it had written may not land any more
    case Status::kEio:
    case Status::kCorrupt:
    case Status::kEnomem:
    case Status::kEintr:  // of here on: nothing that a server has to say of a file's bytes
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

// It changes what an object holds.
constexpr bool changes(Op op) noexcept {
  return op == Op::kWrite || op == Op::kPunch || op == Op::kCopy;
}

constexpr Outcome outcome_of(Op op, Status status) noexcept {
  const Outcomes outcomes = outcomes_of(status);
  if (op == Op::kWrite) return outcomes.write;
  if (op == Op::kSync) return outcomes.sync;
  return changes(op) ? outcomes.change : outcomes.read;
}

}  // namespace braidfs::client
