#include "loops.h"

#include <poll.h>

#include <algorithm>

#include "net/event_loop.h"

namespace braidfs::world {

namespace {

struct Watched {
  std::shared_ptr<Wire> wire;
  Side side;
};

}  // namespace

void Loops::look(Network& network) {
  std::vector<pollfd> asked;
  std::vector<Watched> watched;
  for (const Turning& turning : loops_) asked.push_back({turning.loop->fd(), POLLIN, 0});
  for (const auto& wire : network.wires()) {
    for (const Side side : {Side::kClient, Side::kServer}) {
      if (wire->fd(side) < 0) continue;
      asked.push_back({wire->fd(side), POLLIN, 0});
      watched.push_back({wire, side});
    }
  }
  (void)poll(asked.data(), asked.size(), 0);
  const Time now = VirtualTime::now();
  ready_.clear();
  next_.reset();
  const auto note = [&](Time when) { next_ = next_ ? std::min(*next_, when) : when; };
  for (size_t index = 0; index < loops_.size(); ++index) {
    const auto due = loops_[index].loop->due();
    const bool has_events = asked[index].revents != 0;
    const auto held = held_up_until_.find(loops_[index].name);
    const Time free = std::max(loops_[index].standing_until,
                               held == held_up_until_.end() ? Time{} : held->second);
    if ((has_events || (due && *due <= now)) && free <= now) {
      ready_.push_back(index);
    } else if (has_events) {
      note(free);
    } else if (due) {
      note(std::max(*due, free));
    }
  }
  for (size_t index = 0; index < watched.size(); ++index) {
    if (asked[loops_.size() + index].revents != 0)
      watched[index].wire->take_in(watched[index].side);
  }
}

}  // namespace braidfs::world
