#include "fuse/eof_pages.h"

#include <algorithm>
#include <utility>

namespace braidfs::fuse {

uint64_t EofPages::least_end(const File& file) noexcept {
  uint64_t least = kNotCut;
  for (const auto& [read, end] : file.reads) least = std::min(least, end);
  return least;
}

uint64_t EofPages::begin(uint64_t nodeid) {
  const std::scoped_lock lock(mu_);
  const uint64_t read = next_++;
  files_[nodeid].reads.emplace(read, kNotCut);
  count_.store(files_.size(), std::memory_order_release);
  return read;
}

bool EofPages::cut(uint64_t nodeid, uint64_t read, uint64_t file_end) {
  const std::scoped_lock lock(mu_);
  File& file = files_.at(nodeid);
  if (file.has_size && file.size > file_end) return false;
  file.reads.at(read) = file_end;
  return true;
}

void EofPages::end(uint64_t nodeid, uint64_t read) {
  std::vector<Reply> due;
  {
    const std::scoped_lock lock(mu_);
    File& file = files_.at(nodeid);
    file.reads.erase(read);
    const auto waits = [&file](const Reply& reply) {
      const auto older = file.reads.upper_bound(reply.behind);
      return std::any_of(file.reads.begin(), older,
                         [](const auto& it) { return it.second != kNotCut; });
    };
    while (!file.replies.empty() && !waits(file.replies.front())) {
      due.push_back(std::move(file.replies.front()));
      file.replies.pop_front();
    }
    if (file.reads.empty()) files_.erase(nodeid);
    count_.store(files_.size(), std::memory_order_release);
  }
  for (const Reply& reply : due) send_(reply.channel, reply.bytes);
}

bool EofPages::keeps(uint64_t nodeid, uint64_t size, Channel channel,
                     std::span<const std::byte> reply) {
  if (empty()) return false;
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(nodeid);
  if (found == files_.end()) return false;
  File& file = found->second;
  file.has_size = true;
  file.size = size;
  if (size <= least_end(file)) return false;
  file.replies.push_back({next_ - 1, channel, {reply.begin(), reply.end()}});
  return true;
}

uint64_t EofPages::clip(uint64_t nodeid, uint64_t size) {
  if (empty()) return size;
  const std::scoped_lock lock(mu_);
  const auto found = files_.find(nodeid);
  return found == files_.end() ? size : std::min(size, least_end(found->second));
}

}  // namespace braidfs::fuse
