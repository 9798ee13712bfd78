#include "client/incarnations.h"

namespace braidfs::client {

uint64_t Incarnations::newest(uint32_t target) {
  const std::shared_lock lock(mu_);
  const auto found = targets_.find(target);
  return found == targets_.end() ? 0 : found->second.newest;
}

uint64_t Incarnations::resent(uint32_t target) {
  const std::shared_lock lock(mu_);
  const auto found = targets_.find(target);
  return found == targets_.end() ? 0 : found->second.resent;
}

void Incarnations::rise(uint64_t Incarnation::*number, uint32_t target, uint64_t incarnation) {
  const std::unique_lock lock(mu_);
  targets_[target].*number = incarnation;
}

}  // namespace braidfs::client
