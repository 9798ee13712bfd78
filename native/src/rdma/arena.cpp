#include "rdma/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace braidfs::rdma {

void Blocks::reset() noexcept {
  if (arena_ != nullptr) arena_->give_back(indexes_);
  arena_ = nullptr;
  indexes_.clear();
}

std::span<std::byte> Blocks::at(size_t index) const noexcept {
  return arena_->block(indexes_[index]);
}

std::span<std::byte> Blocks::part(size_t index, size_t length) const noexcept {
  const size_t size = arena_->block_size();
  const size_t begin = index * size;
  return begin >= length ? std::span<std::byte>{} : at(index).first(std::min(size, length - begin));
}

void Blocks::copy_in(std::span<const std::byte> from) const noexcept {
  const size_t length = from.size();
  for (size_t index = 0; index < count() && !from.empty(); ++index) {
    const auto to = part(index, length);
    std::memcpy(to.data(), from.data(), to.size());
    from = from.subspan(to.size());
  }
}

void Blocks::copy_out(std::span<std::byte> to) const noexcept {
  const size_t length = to.size();
  for (size_t index = 0; index < count() && !to.empty(); ++index) {
    const auto from = part(index, length);
    std::memcpy(to.data(), from.data(), from.size());
    to = to.subspan(from.size());
  }
}

Arena::~Arena() {
  region_.reset();
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

int Arena::make(Device& device, uint32_t block_size, uint32_t count, bool remote_access) {
  const size_t length = size_t{block_size} * count;
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  (void)madvise(memory, length, MADV_HUGEPAGE);
  (void)madvise(memory, length, MADV_DONTFORK);
  memory_ = {static_cast<std::byte*>(memory), length};
  block_size_ = block_size;
  count_ = count;
  free_.reserve(count);
  for (uint32_t index = count; index > 0; --index) free_.push_back(index - 1);
  return device.register_memory(memory_, remote_access, region_);
}

Blocks Arena::take(size_t count) {
  if (count > free_.size()) return {};
  std::vector<uint32_t> taken(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return Blocks(this, std::move(taken));
}

void Arena::give_back(std::span<const uint32_t> indexes) noexcept {
  // The room is reserved, so this cannot throw.
  free_.insert(free_.end(), indexes.begin(), indexes.end());
  if (on_return_) on_return_();
}

}  // namespace braidfs::rdma
