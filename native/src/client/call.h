// One request to a storage server, from its issue to its completion, over any number of attempts.
//
// A call belongs to the lane that issued it, and never changes lanes. `owner` keeps its memory (the
// payload to be sent, or the place to receive into) and lives until call_done(). Invariant: a call
// that fails while bytes may still arrive for it is completed only when those bytes have come or
// the connection has ended, so a buffer is used again only when nothing writes to it. Threads: LANE
// ONLY.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "braidfs/frame.h"
#include "client/records.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Inode;
class Lane;
struct Call;

using net::Clock;

class CallOwner {
 public:
  virtual ~CallOwner() = default;
  // Called once, on the call's lane. The call is recycled when it returns.
  virtual void call_done(Lane& lane, Call& call) = 0;
};

struct Call {
  // ---- the request ----
  Op op = Op::kPing;
  Replica replica{};  // FETCH names its objects in its body, so only the target counts
  uint32_t stripe_index = 0;
  uint64_t offset = 0;  // in the object; SYNC: the oldest incarnation to be made durable
  uint32_t length = 0;
  FileViewPtr view{};
  std::shared_ptr<Inode> inode{};        // has a newer view of the same object if a retry needs one
  std::span<const std::byte> payload{};  // WRITE
  std::span<const uint64_t> sums{};      // WRITE: of its blocks; empty: they are not known yet
  std::span<const std::byte> names{};    // FETCH: its body
  std::shared_ptr<Inode> source{};       // COPY: the file that is read, and its view at the start
  FileViewPtr source_view{};
  uint32_t source_stripe = 0;
  uint64_t source_offset = 0;    // in that object
  std::span<std::byte> place{};  // READ: `length` bytes
  std::shared_ptr<CallOwner> owner{};
  uint32_t part = 0;    // the owner's own number for it
  bool behind = false;  // WRITE: nobody waits for it yet
  // READ: bytes came that do not match their checksums, so the server is to verify the block.
  bool distrusts = false;
  // READ and SEEK of a stripe with several replicas (read_replica.h): a bit for each, by its place
  // in the view. 0 asked: the stripe has one replica.
  struct Tries {
    uint8_t asked = 0;
    uint8_t without_raw = 0;  // asked again, after its bytes did not match their checksums
    uint8_t absent = 0;       // it has no such object
    uint8_t failed = 0;       // it cannot give the bytes
    uint8_t rounds = 0;       // in which all were asked
    bool once = false;        // there is one round; the owner tries later
  };
  Tries tries{};
  bool once = false;  // it ends at the first refusal or lost connection; the owner tries later

  // ---- its state ----
  uint64_t request_id = 0;  // 0: not on a connection
  Clock::time_point issued{};
  Clock::time_point sent{};
  Clock::time_point deadline = Clock::time_point::max();
  uint32_t attempts = 0;
  bool failed_early = false;  // status is final; it waits until the connection frees its memory
  // It changes or syncs one replica of several: it has no deadline, since its target is dropped
  // from the file if it does not answer (Lane::gives_up).
  bool is_bound = false;
  Clock::time_point missing_since = Clock::time_point::max();  // its server is not there
  Clock::time_point look_at{};                                 // whether it is to be given up
  bool is_abandoned = false;  // its owner was told; it is here until its answer comes

  // ---- its result ----
  Status status = Status::kOk;
  Status refusal = Status::kOk;  // the server's word, for the log; `status` is its meaning here
  uint32_t received = 0;         // READ: bytes in place
  uint64_t incarnation = 0;      // of the target; 0 when no server answered
  uint64_t seek_at = 0;          // SEEK: where (~0: nowhere)
  bool seek_ended = false;       // SEEK: false: nothing before seek_at

  // It goes to this replica of the stripe, in this view.
  void aim(const FileViewPtr& in, uint32_t stripe, const Replica& at) {
    view = in;
    stripe_index = stripe;
    replica = at;
  }
  // It goes on in this view. Replicas may have other places in it, so what is known of those that
  // were asked is forgotten.
  void see(FileViewPtr now) {
    if (tries.asked != 0) {
      const auto replicas = now->replicas(stripe_index);
      const auto its_place = std::ranges::find(replicas, replica) - replicas.begin();
      tries = {.asked = static_cast<uint8_t>(1u << its_place),
               .rounds = tries.rounds,
               .once = tries.once};
    }
    view = std::move(now);
  }
};

}  // namespace braidfs::client
