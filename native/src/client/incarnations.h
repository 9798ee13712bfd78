// Which incarnation of each target was seen: a target that restarted without its unsynced bytes has
// a higher one (rule 22 of the design).
//
// Two numbers for each target: the newest incarnation that was seen, and the newest whose loss was
// seen to, when everything that was held for the former one is queued again. Invariant: the newest
// one rises before the pieces are gone over, so that an acknowledgement by the former incarnation
// either comes before that, and its piece is found held, or it is not believed any more
// (pieces.cpp, conclude). Threads: ANY THREAD, guarded by mu_; one loss at a time, by loss_mu_,
// under which inodes' mutexes are taken, one after another.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace braidfs::client {

class Incarnations {
 public:
  // A reply of this target carried this incarnation. When it rose, resend() queues again what is
  // held for the target; whichever lane was the first to see it, when this returns it was called.
  template <typename Resend>
  void seen(uint32_t target, uint64_t incarnation, Resend resend) {
    if (actions(target) >= incarnation) return;
    const std::scoped_lock one(loss_mu_);
    const uint64_t known = actions(target);
    if (known >= incarnation) return;
    rise(&Incarnation::newest, target, incarnation);
    if (known != 0) {
      resend();
      ++losses_;
    }
    rise(&Incarnation::actions, target, incarnation);
  }
  // The newest one that was seen: what an older one acknowledged is lost. May be asked with an
  // inode locked; a piece that is acknowledged under that lock is then seen by whoever goes over
  // the pieces of a loss.
  uint64_t newest(uint32_t target);
  // Rises after the held pieces of a restarted target were queued again, and before any reply of
  // its new incarnation is looked at: a READ of lost bytes either waits for these pieces, or sees
  // this number change, and reads again.
  uint64_t losses() const noexcept { return losses_.load(); }

 private:
  struct Incarnation {
    uint64_t newest = 0;
    uint64_t actions = 0;
  };
  uint64_t actions(uint32_t target);
  void rise(uint64_t Incarnation::*number, uint32_t target, uint64_t incarnation);

  std::shared_mutex mu_;
  std::unordered_map<uint32_t, Incarnation> targets_;  // guarded by mu_
  std::mutex loss_mu_;
  std::atomic<uint64_t> losses_ = 0;
};

}  // namespace braidfs::client
