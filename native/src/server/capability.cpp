#include "server/capability.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

namespace braidfs::server {

namespace {

constexpr size_t kSigned = offsetof(Capability, mac);
constexpr size_t kMacSize = sizeof(Capability::mac);

}  // namespace

void CapabilityKey::set(std::span<const std::byte> key) {
  const std::scoped_lock lock(mu_);
  OPENSSL_cleanse(key_.data(), key_.size());
  key_.assign(key.begin(), key.end());
  ++generation_;
}

uint64_t CapabilityKey::generation() const {
  const std::scoped_lock lock(mu_);
  return generation_;
}

bool CapabilityKey::proves(const Capability& capability) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  {
    const std::scoped_lock lock(mu_);
    if (key_.empty()) return false;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&capability);
    if (HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), bytes, kSigned, mac.data(),
             &length) == nullptr) {
      return false;
    }
  }
  return length >= kMacSize && CRYPTO_memcmp(mac.data(), capability.mac, kMacSize) == 0;
}

bool CapabilityCache::proved(const Capability& capability) {
  const auto found = proved_.find(capability.file_id);
  return found != proved_.end() &&
         std::memcmp(&found->second, &capability, sizeof(capability)) == 0;
}

void CapabilityCache::remember(const Capability& capability) {
  const auto [at, fresh] = proved_.insert_or_assign(capability.file_id, capability);
  if (!fresh) return;
  if (order_.size() < kEntriesMax) {
    order_.push_back(capability.file_id);
    return;
  }
  proved_.erase(order_[next_]);
  order_[next_] = capability.file_id;
  next_ = (next_ + 1) % kEntriesMax;
}

Status CapabilityCache::check(const Capability& capability, const Place& place, uint64_t session,
                              uint32_t rights) {
  if (capability.file_id != place.file_id || !grants(capability, session, rights) ||
      !covers(capability, place)) {
    return Status::kBadCapability;
  }
  if (const uint64_t now = key_.generation(); now != generation_) {
    proved_.clear();
    order_.clear();
    next_ = 0;
    generation_ = now;
  }
  if (proved(capability)) return Status::kOk;
  if (!key_.proves(capability)) return Status::kBadCapability;
  remember(capability);
  return Status::kOk;
}

}  // namespace braidfs::server
