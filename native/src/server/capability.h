// Who may touch an object (rule 25): the proof that a capability was made by the metaserver.
// CapabilityKey holds the cluster's key and is shared by all lanes (ANY THREAD, guarded by mu_);
// CapabilityCache remembers, for one connection, what was proved (LANE ONLY, bounded).
// A cached capability is compared byte by byte, a MAC in constant time. It also says which objects
// the file has: of another stripe or another target's nothing is made that nobody would ever
// delete. Whether the session lives is not here: session_table.h.
#pragma once
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
  // Rises with every set(), so that caches know when what they proved is void.
  uint64_t generation() const;
  // False also while there is no key.
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

  // What of a file a request touches. epoch: that it writes with, else 0.
  struct Place {
    uint64_t file_id = 0;
    uint32_t stripe_index = 0;
    uint32_t target = 0;
    uint32_t epoch = 0;
  };

  // kOk, or kBadCapability when the bytes are not proved, of another session or file, lack a right,
  // or are of a file that has no such object there, or not that epoch.
  Status check(const Capability& capability, const Place& place, uint64_t session, uint32_t rights);

  // The same of one that is not going to be asked about again soon: nothing is remembered.
  bool proves(const Capability& capability, const Place& place, uint64_t session,
              uint32_t rights) const {
    return says(capability, session, rights) && covers(capability, place) &&
           key_.proves(capability);
  }

  size_t size() const { return proved_.size(); }

 private:
  static bool says(const Capability& capability, uint64_t session, uint32_t rights) noexcept {
    return capability.session == session && (capability.rights & rights) == rights;
  }
  static bool covers(const Capability& capability, const Place& place) noexcept {
    const uint32_t width = capability.stripe_width;
    if (width == 0) return true;
    if (place.stripe_index >= width || width > limits::kStripeWidthMax ||
        place.epoch > capability.truncate_epoch) {
      return false;
    }
    const uint32_t bits = target_mark_width(width);
    const uint64_t mark = capability.target_marks >> (place.stripe_index * bits);
    return ((mark ^ target_mark(place.target, width)) & ((uint64_t{1} << bits) - 1)) == 0;
  }
  bool proved(const Capability& capability);
  void remember(const Capability& capability);

  const CapabilityKey& key_;
  uint64_t generation_ = 0;
  std::unordered_map<uint64_t, Capability> proved_;  // by file id; the newest one proved
  std::vector<uint64_t> order_;                      // ring of file ids, oldest at next_
  size_t next_ = 0;
};

}  // namespace braidfs::server
