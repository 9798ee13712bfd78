// Memory that is registered once and lent out in equal blocks.
//
// Pages are huge where the kernel provides such pages. Nothing is registered after make(). A block
// is lent to one operation, and returns only when the operation's completion was reaped or its
// queue pair was destroyed (rule 26): the holder of the Blocks sees to that by keeping them.
//
// Threads: LANE ONLY after make(). Invariant: the arena outlives the blocks that it lent.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rdma/verbs.h"

namespace braidfs::rdma {

class Arena;

// Some blocks of an arena. Moved, never copied; destroyed, they go back to the arena.
class Blocks {
 public:
  Blocks() = default;
  Blocks(Blocks&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), indexes_(std::move(other.indexes_)) {
    other.indexes_.clear();
  }
  Blocks& operator=(Blocks&& other) noexcept {
    if (this == &other) return *this;
    reset();
    arena_ = std::exchange(other.arena_, nullptr);
    indexes_ = std::exchange(other.indexes_, {});
    return *this;
  }
  ~Blocks() { reset(); }
  void reset() noexcept;

  size_t count() const noexcept { return indexes_.size(); }
  std::span<std::byte> at(size_t index) const noexcept;
  // The part of block `index` that holds bytes of a transfer of `length` bytes.
  std::span<std::byte> part(size_t index, size_t length) const noexcept;
  void copy_in(std::span<const std::byte> from) const noexcept;
  void copy_out(std::span<std::byte> to) const noexcept;

 private:
  friend class Arena;
  Blocks(Arena* arena, std::vector<uint32_t> indexes) noexcept
      : arena_(arena), indexes_(std::move(indexes)) {}
  Arena* arena_ = nullptr;
  std::vector<uint32_t> indexes_;
};

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Maps and registers the memory. Called once. 0 or -errno (ENOMEM: the memlock limit is too
  // small).
  int make(Device& device, uint32_t block_size, uint32_t count, bool remote_access);

  // Lends `count` blocks; an empty Blocks when fewer are free.
  Blocks take(size_t count);
  size_t free_count() const noexcept { return free_.size(); }
  size_t count() const noexcept { return count_; }
  uint32_t block_size() const noexcept { return block_size_; }
  uint32_t local_key() const noexcept { return region_->local_key(); }
  uint32_t remote_key() const noexcept { return region_->remote_key(); }
  std::span<std::byte> block(uint32_t index) const noexcept {
    return memory_.subspan(size_t{index} * block_size_, block_size_);
  }
  // Sets the function that is called when blocks came back.
  void on_return(std::function<void()> called) { on_return_ = std::move(called); }

 private:
  friend class Blocks;
  void give_back(std::span<const uint32_t> indexes) noexcept;

  std::span<std::byte> memory_{};
  std::unique_ptr<Region> region_;
  uint32_t block_size_ = 0;
  uint32_t count_ = 0;
  std::vector<uint32_t> free_;
  std::function<void()> on_return_;
};

}  // namespace braidfs::rdma
