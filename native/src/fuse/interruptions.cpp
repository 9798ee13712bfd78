#include "fuse/interruptions.h"

#include <algorithm>

#include "fuse/signals.h"
#include "fuse/upcall_sink.h"

namespace braidfs::fuse {

void Interruptions::put(uint64_t interrupt, uint64_t target) {
  const auto lock = upcalls_.waiting(target);
  if (lock && lock->ends == Waiting::Ends::kByAnySignal) return end(target);
  if (waiting_.size() >= kMax) {
    channels_.reply_again(waiting_.front().interrupt);
    waiting_.pop_front();
  }
  waiting_.push_back({interrupt, target, Clock::now()});
  if (is_looking_) return;
  is_looking_ = true;
  loop_->call_at(Clock::now() + kLook, [this] { look(); });
}

void Interruptions::look() {
  const auto now = Clock::now();
  for (size_t left = std::min(kAtOnce, waiting_.size()); left > 0; --left) {
    if (now - waiting_.front().since < kLook) break;
    const Interrupted one = waiting_.front();
    waiting_.pop_front();
    if (!is_over(one)) waiting_.push_back(one);
  }
  is_looking_ = !waiting_.empty();
  if (is_looking_) loop_->call_at(now + kLook, [this] { look(); });
}

// Whether the request needs no further check.
bool Interruptions::is_over(const Interrupted& one) {
  auto waiting = data_.waiting(one.target);
  if (!waiting) waiting = upcalls_.waiting(one.target);
  if (!waiting) {
    channels_.reply_again(one.interrupt);
    return true;
  }
  if (!ends(*waiting, Clock::now() - one.since)) return false;
  end(one.target);
  return true;
}

bool Interruptions::ends(const Waiting& waiting, Clock::duration waited) {
  if (waiting.ends == Waiting::Ends::kByAnySignal) return true;
  const auto signals = signals_of(waiting.pid);
  if (!signals) return waited >= kUnseen;
  return signals->fatal ||
         (signals->asks && waiting.ends == Waiting::Ends::kWhenAsked && waited >= kAsked);
}

void Interruptions::end(uint64_t target) {
  if (!data_.interrupt(target)) (void)upcalls_.interrupt(target);
}

}  // namespace braidfs::fuse
