// Which replicas have acknowledged a written piece, each in which incarnation of its target. Flat,
// since nearly every file has one replica. Plain values: whoever owns one guards it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "client/records.h"

namespace braidfs::client {

class Acknowledged {
 public:
  struct One {
    Replica replica{};
    uint64_t incarnation = 0;
  };

  std::span<const One> all() const noexcept { return std::span(ones_).first(count_); }
  bool by(const Replica& replica) const noexcept {
    return std::ranges::any_of(all(), [&](const One& one) { return one.replica == replica; });
  }
  bool by_all(std::span<const Replica> replicas) const noexcept {
    return std::ranges::all_of(replicas, [&](const Replica& one) { return by(one); });
  }
  void note(const Replica& replica, uint64_t incarnation) noexcept {
    if (count_ < ones_.size()) ones_[count_++] = {replica, incarnation};
  }
  // The target has lost it, or gets it again after an earlier piece.
  void forget(uint32_t target) noexcept {
    forget_if([&](const One& one) { return one.replica.target == target; });
  }
  // Names that are not among these are in no layout any more.
  void keep(std::span<const Replica> replicas) noexcept {
    forget_if([&](const One& one) { return std::ranges::count(replicas, one.replica) == 0; });
  }
  // Returns how many it forgot.
  template <typename Fn>
  size_t forget_if(Fn fn) noexcept {
    const auto end = ones_.begin() + count_;
    const auto left = std::remove_if(ones_.begin(), end, fn);
    count_ = static_cast<uint8_t>(left - ones_.begin());
    return static_cast<size_t>(end - left);
  }
  void clear() noexcept { count_ = 0; }

 private:
  std::array<One, limits::kReplicaPlacesMax> ones_{};
  uint8_t count_ = 0;
};

}  // namespace braidfs::client
