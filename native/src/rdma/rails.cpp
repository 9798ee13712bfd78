#include "rdma/rails.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace braidfs::rdma {

namespace {

// token = number of the rail + 1, lane (16 bits each), token of the rail (32 bits)
constexpr uint32_t kRailShift = 48;
constexpr uint32_t kLaneShift = 32;
constexpr uint32_t kBlocksMin = kSegmentsMax;  // the largest payload fits

uint64_t widen(size_t rail, size_t lane, uint64_t token) {
  return (static_cast<uint64_t>(rail) + 1) << kRailShift |
         static_cast<uint64_t>(lane) << kLaneShift | (token & UINT32_MAX);
}

}  // namespace

int Rails::open(const DeviceAddress& address, size_t lane_count, uint64_t memory_bytes,
                bool is_acceptor, std::string& reason) {
  std::unique_ptr<Device> device;
  if (const int error = open_device(address, device, reason); error != 0) return error;
  const uint64_t share = memory_bytes / lane_count / (is_acceptor ? 2 : 1) / kBlockSize;
  const auto blocks = static_cast<uint32_t>(std::clamp<uint64_t>(share, kBlocksMin, 1u << 16));
  const PortSettings settings{
      .is_acceptor = is_acceptor, .out_blocks = blocks, .in_blocks = is_acceptor ? blocks : 0};
  std::shared_ptr<Rail> rail;
  if (const int error = Rail::make(std::move(device), lane_count, settings, rail, reason);
      error != 0) {
    reason = address.device + ": " + reason;
    return error;
  }
  return add(std::move(rail));
}

int Rails::add(std::shared_ptr<Rail> rail) {
  const std::scoped_lock lock(mu_);
  if (rails_.size() >= kRailsMax || next_ >= kNumberMax) return -EMFILE;
  rails_[next_] = std::move(rail);
  return next_++;
}

void Rails::close(size_t rail) {
  const auto chosen = find(widen(rail, 0, 0));
  if (chosen) chosen->close("the rail is no longer used");
}

std::vector<int> Rails::check() {
  const std::scoped_lock lock(mu_);
  std::vector<int> failed;
  std::erase_if(rails_, [&](const auto& entry) {
    const auto& [number, rail] = entry;
    if (!rail->is_closed()) {
      if (rail->has_failed()) failed.push_back(number);
      return false;
    }
    if (!rail->is_idle()) {
      rail->close("the rail is no longer used");
      return false;
    }
    if (!rail->let_go()) return false;
    for (const auto& [name, value] : rail->counters()) past_[name] += value;
    return true;
  });
  return failed;
}

std::shared_ptr<Rail> Rails::find(uint64_t token) const {
  const std::scoped_lock lock(mu_);
  const auto found = rails_.find(static_cast<int>(token >> kRailShift) - 1);
  return found == rails_.end() ? nullptr : found->second;
}

int Rails::offer(size_t rail, size_t lane, uint64_t& token, Peer& local) {
  const auto chosen = find(widen(rail, 0, 0));
  if (chosen == nullptr) return -EINVAL;
  uint64_t number = 0;
  if (const int error = chosen->offer(lane, number, local); error != 0) return error;
  token = widen(rail, lane, number);
  return 0;
}

int Rails::connect(uint64_t token, std::span<const std::byte> bytes) {
  const auto rail = find(token);
  Peer peer;
  if (bytes.size() != sizeof peer) return -EPROTO;
  std::memcpy(&peer, bytes.data(), sizeof peer);
  return rail == nullptr ? -ENOENT : rail->connect(token & UINT32_MAX, peer);
}

Claim Rails::claim(uint64_t token) {
  const auto rail = find(token);
  if (rail == nullptr) return {};
  return {rail->claim(token & UINT32_MAX), token >> kLaneShift & UINT16_MAX};
}

void Rails::drop(uint64_t token) {
  if (const auto rail = find(token)) rail->drop(token & UINT32_MAX);
}

void Rails::add_counters(std::map<std::string, uint64_t>& sums) const {
  const std::scoped_lock lock(mu_);
  for (const auto& [name, value] : past_) sums[name] += value;
  for (const auto& [number, rail] : rails_) {
    for (const auto& [name, value] : rail->counters()) sums[name] += value;
  }
}

}  // namespace braidfs::rdma
