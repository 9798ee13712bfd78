// Rules of the protocol that a world can break, so that tests see that it misses them. The programs
// stay as they are: the network tampers with frames, disks lie, or a part that the world plays does
// not do what it must.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "clockwork.h"
#include "network.h"

namespace braidfs::world {

class Metaserver;

enum class Mutant : uint8_t {
  kNone,
  kEarlyAcknowledgement,  // a WRITE is answered before the server has it; a later one overtakes it
  kLateRepetition,        // a WRITE arrives once more, after it was answered
  kSyncUndone,            // SYNC is answered, and nothing was synced
  kSyncOfAnyIncarnation,  // SYNC does not say since when it is to be durable
  kIncarnationHidden,     // replies do not show that the incarnation has risen
  kFormerUnnamed,         // a new connection is served beside the former one's requests
  kStaleEpochTaken,       // a WRITE of before a truncate is taken after it
  kTruncateUndone,        // TRUNCATE is answered, and nothing was cut
  kPowerLossUnnoticed,    // the incarnation does not rise with a loss of power
  kDiskLies,              // fdatasync does nothing
  kHeldDropped,           // the client does not hold what is not synced yet
  kReplyForgotten,        // now and then a WRITE is not answered
  // Of replicas.
  kOneReplicaEnough,     // a WRITE is answered when one replica has it
  kDroppedNameAnswered,  // a target says that it has dropped a name, and has not
  kLastDropped,          // also the last replica is dropped
  kIncarnationNotKept,   // a target that lost power keeps its replicas of files that are written
  kCloseNotRefused,      // a close is taken though a target has lost what it acknowledged
  kNoFence,              // an evicted session is fenced nowhere
  kNotMadeWhole,         // what a dead writer has left is not made whole
  kAddedUnclaimed,       // a copy is added though somebody may write
  kAddedUnraised,        // a copy is added though replicas that stay take the former epoch
  kCount,
};

const char* name_of(Mutant mutant);

// nullptr: this one does not tamper with frames.
std::unique_ptr<Tampering> tampering_of(Mutant mutant, Clockwork& clockwork,
                                        const std::unique_ptr<Metaserver>& metaserver);

}  // namespace braidfs::world
