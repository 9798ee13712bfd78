// All lanes of a client. Invariant: their number never changes. Threads: start() and stop() one
// after another; the rest ANY THREAD. Not here: what a lane does (lane.h).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/lane.h"

namespace braidfs::client {

class Lanes {
 public:
  Lanes(Context& context, uint32_t count, const LaneDuties& duties);

  void start();
  void stop();  // returns when their threads have ended
  // 0, or -errno of a lane's event loop; then nothing may be started.
  int fault() const noexcept;

  uint32_t count() const noexcept { return static_cast<uint32_t>(lanes_.size()); }
  Lane& at(uint32_t index) noexcept { return *lanes_[index]; }
  Lane& of(uint64_t ino) noexcept { return *lanes_[ino % lanes_.size()]; }
  // Runs the task on each lane, some time later.
  template <typename Task>
  void post(const Task& task) {
    for (const auto& lane : lanes_) lane->post(task);
  }
  // Runs task(lane) on each lane, and then last(lane) on the lane that was the last to run it.
  // False: a lane is flooded, and `last` will not run.
  template <typename Task, typename Last>
  bool post(const Task& task, const Last& last) {
    auto left = std::make_shared<std::atomic<size_t>>(lanes_.size());
    const auto counted = [left, task, last](Lane& at) {
      task(at);
      if (--*left == 0) last(at);
    };
    return std::ranges::all_of(lanes_, [&](const auto& lane) { return lane->post(counted); });
  }
  template <typename Field>
  uint64_t sum(Field field) const {
    uint64_t total = 0;
    for (const auto& lane : lanes_) total += field(*lane);
    return total;
  }

  void hurry();         // somebody waits: gathering writes leave at once
  void send_partial();  // sends the partial pieces of all inodes

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<bool> sending_partial_ = false;
};

}  // namespace braidfs::client
