#include "client/commits.h"

namespace braidfs::client {

uint64_t Commits::begin(std::shared_ptr<DrainOperation> operation) {
  const std::scoped_lock lock(mu_);
  under_way_.emplace(++token_, std::move(operation));
  return token_;
}

std::shared_ptr<DrainOperation> Commits::end(uint64_t token) {
  const std::scoped_lock lock(mu_);
  const auto found = under_way_.find(token);
  if (found == under_way_.end()) return nullptr;
  std::shared_ptr<DrainOperation> operation = std::move(found->second);
  under_way_.erase(found);
  return operation;
}

bool Commits::none() {
  const std::scoped_lock lock(mu_);
  return under_way_.empty();
}

}  // namespace braidfs::client
