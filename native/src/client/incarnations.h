// Which incarnation of each target was seen. A target that restarted without its unsynced bytes has
// a higher one (rule 22).
//
// There are two numbers for each target: the newest incarnation that was seen, and the newest one
// for which everything that was held for the former one is queued again. Invariant: the newest one
// rises before the pieces are gone over, so an acknowledgement by the former incarnation either
// comes before that, and its piece is found held, or is not believed any more (pieces.cpp,
// conclude). Threads: ANY THREAD, guarded by mu_. loss_mu_ lets one loss be handled at a time;
// inodes' mutexes are taken under it, one after another.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace braidfs::client {

class Incarnations {
 public:
  // A reply of this target carries this incarnation. If it is a newer one, resend() queues again
  // what is held for the target. When this returns that has been done, whichever lane saw it first.
  template <typename Resend>
  void seen(uint32_t target, uint64_t incarnation, Resend resend) {
    if (resent(target) >= incarnation) return;
    const std::scoped_lock one(loss_mu_);
    const uint64_t known = resent(target);
    if (known >= incarnation) return;
    rise(&Incarnation::newest, target, incarnation);
    if (known != 0) {
      resend();
      ++losses_;
    }
    rise(&Incarnation::resent, target, incarnation);
  }
  // The newest one that was seen; what an older one acknowledged is lost. It may be called with an
  // inode locked: whoever goes over the pieces for a loss sees a piece that is acknowledged under
  // that lock.
  uint64_t newest(uint32_t target);
  // It rises after the held pieces of a restarted target were queued again, and before any reply of
  // the new incarnation is used: a READ of lost bytes either waits for these pieces, or sees this
  // number change and reads again.
  uint64_t losses() const noexcept { return losses_.load(); }

 private:
  struct Incarnation {
    uint64_t newest = 0;
    uint64_t resent = 0;
  };
  uint64_t resent(uint32_t target);
  void rise(uint64_t Incarnation::*number, uint32_t target, uint64_t incarnation);

  std::shared_mutex mu_;
  std::unordered_map<uint32_t, Incarnation> targets_;  // guarded by mu_
  std::mutex loss_mu_;
  std::atomic<uint64_t> losses_ = 0;
};

}  // namespace braidfs::client
