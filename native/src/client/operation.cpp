#include "client/operation.h"

#include <algorithm>

namespace braidfs::client {

void WaitingTable::put(uint64_t unique, std::shared_ptr<Operation> operation) {
  Shard& in = shard(unique);
  const std::scoped_lock lock(in.mu);
  in.entries.push_back({unique, std::move(operation)});
}

void WaitingTable::drop(uint64_t unique) noexcept {
  std::shared_ptr<Operation> dropped;  // is destroyed after the lock is released
  Shard& in = shard(unique);
  const std::scoped_lock lock(in.mu);
  const auto found = std::find_if(in.entries.begin(), in.entries.end(),
                                  [&](const Entry& entry) { return entry.unique == unique; });
  if (found == in.entries.end()) return;
  dropped = std::move(found->operation);
  if (found != in.entries.end() - 1) *found = std::move(in.entries.back());
  in.entries.pop_back();
}

std::shared_ptr<Operation> WaitingTable::find(uint64_t unique) {
  Shard& in = shard(unique);
  const std::scoped_lock lock(in.mu);
  for (const Entry& entry : in.entries) {
    if (entry.unique == unique) return entry.operation;
  }
  return nullptr;
}

std::vector<std::shared_ptr<Operation>> WaitingTable::all() {
  std::vector<std::shared_ptr<Operation>> found;
  for (Shard& in : shards_) {
    const std::scoped_lock lock(in.mu);
    for (const Entry& entry : in.entries) found.push_back(entry.operation);
  }
  return found;
}

}  // namespace braidfs::client
