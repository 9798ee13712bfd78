// Who may touch an object (rule 25): the proof that a capability was made by the metaserver.
// CapabilityKey holds the cluster's key and is shared by all lanes (ANY THREAD, guarded by mu_);
// CapabilityCache remembers, for one connection, what was proved (LANE ONLY, bounded).
// A cached capability is compared byte by byte, a MAC in constant time. Whether the session lives
// is not here: session_table.h.
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

  // kOk, or kBadCapability when the bytes are not proved, of another session or file, or lack a
  // right.
  Status check(const Capability& capability, uint64_t file_id, uint64_t session, uint32_t rights);

  // The same of one that is not going to be asked about again soon: nothing is remembered.
  bool proves(const Capability& capability, uint64_t session, uint32_t rights) const {
    return says(capability, session, rights) && key_.proves(capability);
  }

  size_t size() const { return proved_.size(); }

 private:
  static bool says(const Capability& capability, uint64_t session, uint32_t rights) noexcept {
    return capability.session == session && (capability.rights & rights) == rights;
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
