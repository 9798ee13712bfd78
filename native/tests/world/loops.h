// The event loops of all programs in a world, and which of them has something to do. A loop may be
// held up: its thread does not run for a while.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clockwork.h"
#include "network.h"
#include "storage_host.h"

namespace braidfs::world {

struct Turning {
  net::EventLoop* loop;
  std::string name;
  StorageHost* host;      // nullptr: it is a client's
  Time standing_until{};  // its process does not run
};

class Loops {
 public:
  // Those that there are now; their threads are known by name.
  void take(std::vector<Turning> loops) { loops_ = std::move(loops); }
  void hold_up(size_t index, Time until) { held_up_until_[loops_[index].name] = until; }
  size_t count() const noexcept { return loops_.size(); }

  // Asks the kernel once: takes in what programs have sent, and finds whose turn may be next.
  void look(Network& network);
  const std::vector<size_t>& ready() const noexcept { return ready_; }
  const Turning& at(size_t index) const noexcept { return loops_[index]; }
  // When the next of those that are not ready has something to do.
  std::optional<Time> next() const noexcept { return next_; }

 private:
  std::vector<Turning> loops_;
  std::map<std::string, Time> held_up_until_;
  std::vector<size_t> ready_;
  std::optional<Time> next_;
};

}  // namespace braidfs::world
