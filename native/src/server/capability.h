// Who may touch an object (rule 25): the proof that the metaserver made a capability.
//
// CapabilityKey holds the cluster's key and is shared by all lanes. CapabilityCache remembers, for
// one connection, which capabilities were proved. A remembered capability is compared byte by byte,
// a MAC in constant time. The capability also says which objects the file has: an object with
// another stripe or on another target is refused, because nobody would ever delete it.
//
// Threads: CapabilityKey is ANY THREAD, guarded by mu_; CapabilityCache is LANE ONLY, bounded. Not
// here: whether the session lives (session_table.h).
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::server {

class CapabilityKey {
 public:
  void set(std::span<const std::byte> key);
  // Rises with every set(), so that caches know when their proofs are void.
  uint64_t generation() const;
  // False as well while there is no key.
  bool proves(const Capability& capability) const;

 private:
  mutable std::mutex mu_;
  std::vector<std::byte> key_;
  uint64_t generation_ = 0;
};

class CapabilityCache {
 public:
  static constexpr size_t kEntriesMax = 4096;

  explicit CapabilityCache(const CapabilityKey& key) : key_(key) {}

  // The object that a request touches. `epoch` is the truncate epoch that it writes with, else 0.
  struct Place {
    uint64_t file_id = 0;
    uint32_t object_number = 0;
    uint32_t target = 0;
    uint32_t epoch = 0;
  };

  // kOk, or kBadCapability: the capability is not proved, belongs to another session or file, lacks
  // a right, or its file has no such object there or another epoch.
  Status check(const Capability& capability, const Place& place, uint64_t session, uint32_t rights);

  // The same check for a capability that is not expected again soon: nothing is remembered.
  bool proves(const Capability& capability, const Place& place, uint64_t session,
              uint32_t rights) const {
    return grants(capability, session, rights) && covers(capability, place) &&
           key_.proves(capability);
  }

  size_t size() const { return proved_.size(); }

 private:
  static bool grants(const Capability& capability, uint64_t session, uint32_t rights) noexcept {
    return capability.session == session && (capability.rights & rights) == rights;
  }
  static bool covers(const Capability& capability, const Place& place) noexcept {
    const uint32_t width = capability.stripe_width;
    if (width == 0) return true;
    const uint32_t stripe = stripe_of(place.object_number);
    if (stripe >= width || width > limits::kStripeWidthMax ||
        capability.replica_places > limits::kReplicaPlacesMax ||
        place.epoch > capability.truncate_epoch) {
      return false;
    }
    if (capability.replica_places == 0 && generation_of(place.object_number) != 0) return false;
    return names_target(capability, stripe, place.target);
  }
  // A replica of the stripe is on this target, as far as its mark says.
  static bool names_target(const Capability& capability, uint32_t stripe,
                           uint32_t target) noexcept {
    const uint32_t replicas = std::max<uint32_t>(capability.replica_places, 1);
    const uint32_t places = capability.stripe_width * replicas;
    const uint32_t bits = target_mark_width(places);
    if (bits == 0) return true;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    const uint64_t wanted = target_mark(target, places);
    for (uint32_t place = stripe * replicas; place < (stripe + 1) * replicas; ++place) {
      if (((capability.target_marks >> (place * bits)) & mask) == wanted) return true;
    }
    return false;
  }
  bool proved(const Capability& capability);
  void remember(const Capability& capability);

  const CapabilityKey& key_;
  uint64_t generation_ = 0;
  // by file id: the newest capability that was proved
  std::unordered_map<uint64_t, Capability> proved_;
  std::vector<uint64_t> order_;  // ring of file ids; the oldest is at next_
  size_t next_ = 0;
};

}  // namespace braidfs::server
