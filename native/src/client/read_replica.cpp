#include "client/read_replica.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "client/inode.h"
#include "client/lane.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;

constexpr auto kRestMin = milliseconds(10);
constexpr auto kRestMax = milliseconds(1000);

uint8_t bit(uint32_t place) noexcept { return static_cast<uint8_t>(1u << place); }
uint8_t bits_of(size_t replicas) noexcept { return static_cast<uint8_t>((1u << replicas) - 1); }

uint32_t place_of(std::span<const Replica> replicas, const Replica& replica) {
  return static_cast<uint32_t>(std::ranges::find(replicas, replica) - replicas.begin());
}

// How busy a server is that owes so many answers. A few more or less decide nothing: a small file
// is then read where it was fetched ahead (server_caches.h), and only one server's disk reads it.
constexpr int busyness(size_t owed) noexcept { return std::bit_width(owed / 8); }

// The best place of those that were not asked; there is one.
uint32_t pick(const Lane& lane, const FileView& view, uint32_t stripe_index, uint8_t asked) {
  const auto replicas = view.replicas(stripe_index);
  const auto count = static_cast<uint32_t>(replicas.size());
  std::tuple best{true, true, std::numeric_limits<int>::max(), count, 0u};
  for (uint32_t step = 0; step < count; ++step) {
    const uint32_t place = usual_place(view.file_id, count, step);
    if ((asked & bit(place)) != 0) continue;
    const Lane::Nearness nearness = lane.nearness(replicas[place].target);
    const int busy = busyness(nearness.owed);
    best = std::min(best, {nearness.is_stuck, !nearness.is_local, busy, step, place});
  }
  return std::get<4>(best);
}

Call* next_of(Lane& lane, const Call& ended, const Call::Tries& tries, const Replica& replica) {
  Call* const call = lane.make_call();
  call->op = ended.op;
  call->aim(ended.view, ended.stripe_index, replica);
  call->offset = ended.offset;
  call->length = ended.length;
  call->inode = ended.inode;
  call->place = ended.place;
  call->owner = ended.owner;
  call->part = ended.part;
  call->once = true;
  call->tries = tries;
  call->issued = ended.issued;
  call->deadline = ended.deadline;
  return call;
}

// All replicas were asked, and none has given the bytes. True: they are asked again.
bool begins_again(Lane& lane, Call& ended, const Call::Tries& tries, size_t replicas) {
  const bool is_known = (tries.absent | tries.failed) == bits_of(replicas);
  const bool is_hole = tries.absent != 0 && !must_exist(*ended.view, ended.stripe_index);
  const bool is_absent = tries.failed == 0 && (is_known || is_hole);
  if (is_known || is_absent || tries.once || lane.loop().now() >= ended.deadline) {
    ended.status = is_absent ? Status::kNoObject : Status::kEio;
    return false;
  }
  lane.ask_for_view(ended);
  const uint32_t place = pick(lane, *ended.view, ended.stripe_index, 0);
  const Call::Tries fresh{.asked = bit(place),
                          .rounds = static_cast<uint8_t>(std::min(tries.rounds + 1, 10))};
  const auto rest = std::min(kRestMin * (1u << tries.rounds), kRestMax);
  const auto& replica = ended.view->replicas(ended.stripe_index)[place];
  lane.submit_later(next_of(lane, ended, fresh, replica), rest);
  return true;
}

}  // namespace

void aim_read(Lane& lane, Call& call, const FileViewPtr& view, uint32_t stripe_index) {
  if (!view->is_mirrored(stripe_index))
    return call.aim(view, stripe_index, view->first_replica(stripe_index));
  const uint32_t place = pick(lane, *view, stripe_index, 0);
  call.aim(view, stripe_index, view->replicas(stripe_index)[place]);
  call.tries = {.asked = bit(place), .once = call.once};
  call.once = true;
}

bool ask_next(Lane& lane, Call& ended) {
  if (ended.status == Status::kOk || ended.status == Status::kAborted) return false;
  const auto now_known = ended.inode->view();
  if (now_known->file_id != ended.view->file_id ||
      !now_known->has(ended.stripe_index, ended.replica)) {
    ended.status = Status::kStaleTruncateEpoch;  // the owner looks at the view again
    return false;
  }
  if (ended.tries.asked == 0) return false;
  const auto replicas = ended.view->replicas(ended.stripe_index);
  const uint32_t place = place_of(replicas, ended.replica);
  Call::Tries tries = ended.tries;
  tries.asked |= bit(place);
  if (ended.status == Status::kChecksum && (tries.without_raw & bit(place)) == 0) {
    tries.without_raw |= bit(place);
    Call* const call = next_of(lane, ended, tries, ended.replica);
    call->distrusts = true;
    lane.submit_again(call);
    return true;
  }
  if (ended.status == Status::kNoObject) tries.absent |= bit(place);
  const bool is_final = ended.status == Status::kEio && ended.refusal != Status::kOk;
  if (is_final || ended.status == Status::kChecksum) tries.failed |= bit(place);
  if (tries.asked == bits_of(replicas.size()))
    return begins_again(lane, ended, tries, replicas.size());
  const uint32_t next = pick(lane, *ended.view, ended.stripe_index, tries.asked);
  tries.asked |= bit(next);
  lane.submit_again(next_of(lane, ended, tries, replicas[next]));
  return true;
}

}  // namespace braidfs::client
