// A bounded pool of equal buffers, aligned to 4096 bytes, lent by RAII leases.
//
// Buffers are made when first needed and kept for reuse up to `idle_max`; never more than
// `count_max` exist, so lease() may come back empty and the caller waits. A lease lent to an
// operation is kept by whoever reaps that operation's completion: reuse is only possible after it
// was dropped. Invariant: the pool outlives its leases. ANY THREAD, guarded by mu_.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "net/slabs.h"

namespace braidfs::net {

class BufferPool {
  class GiveBack {
   public:
    GiveBack() noexcept : slabs_(nullptr) {}
    explicit GiveBack(Slabs* slabs) noexcept : slabs_(slabs) {}
    void operator()(std::byte* bytes) const noexcept { slabs_->give_back(bytes); }

   private:
    Slabs* slabs_;
  };
  using Block = std::unique_ptr<std::byte, GiveBack>;

 public:
  static constexpr size_t kAlignment = 4096;

  class Lease {
   public:
    Lease() noexcept = default;
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), block_(std::move(other.block_)) {}
    Lease& operator=(Lease&& other) noexcept {
      if (this == &other) return *this;
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      block_ = std::move(other.block_);
      return *this;
    }
    ~Lease() { reset(); }

    explicit operator bool() const noexcept { return block_ != nullptr; }
    std::byte* begin() const noexcept { return block_.get(); }
    std::span<std::byte> span() const noexcept {
      return block_ ? std::span(block_.get(), pool_->buffer_size_) : std::span<std::byte>();
    }
    void reset() noexcept {
      if (block_) std::exchange(pool_, nullptr)->take_back(std::move(block_));
    }

   private:
    friend class BufferPool;
    Lease(BufferPool* pool, Block block) noexcept : pool_(pool), block_(std::move(block)) {}
    BufferPool* pool_ = nullptr;
    Block block_;
  };

  // buffer_size is rounded up to the alignment.
  BufferPool(size_t buffer_size, size_t count_max, size_t idle_max,
             Slabs::Pages pages = Slabs::Pages::kSmall)
      : buffer_size_((buffer_size + kAlignment - 1) / kAlignment * kAlignment),
        count_max_(count_max),
        idle_max_(idle_max),
        slabs_(buffer_size_, pages) {
    idle_.reserve(idle_max);
  }
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  size_t buffer_size() const noexcept { return buffer_size_; }

  // An empty lease when count_max are out or memory is short.
  Lease lease() {
    const std::scoped_lock lock(mu_);
    if (lent_ >= count_max_) return {};
    Block block;
    if (!idle_.empty()) {
      block = std::move(idle_.back());
      idle_.pop_back();
      unused_ = std::min(unused_, idle_.size());
      count_idle();
    } else {
      block = Block(slabs_.take(), GiveBack(&slabs_));
      if (!block) return {};
    }
    ++lent_;
    return Lease(this, std::move(block));
  }

  size_t lent() const {
    const std::scoped_lock lock(mu_);
    return lent_;
  }

  size_t idle() const noexcept { return idle_count_.load(std::memory_order_relaxed); }

  // Gives up to `count` idle buffers back to the system; returns how many.
  size_t shrink(size_t count) noexcept {
    const std::scoped_lock lock(mu_);
    count = std::min(count, idle_.size());
    drop(count);
    if (count > 0) slabs_.cool();
    return count;
  }

  // Makes one more buffer than there are, to be idle; false when there are `count`, or memory is
  // short.
  bool warm_one(size_t count) noexcept {
    Lease made;
    {
      const std::scoped_lock lock(mu_);
      if (lent_ + idle_.size() >= std::min(count, idle_max_)) return false;
      Block block(slabs_.take(), GiveBack(&slabs_));
      if (!block) return false;
      ++lent_;
      made = Lease(this, std::move(block));
    }
    Slabs::touch(made.span());  // which may take milliseconds: others go on
    return true;
  }

  // Gives back the buffers that were idle ever since the last call, but for the last `keep`.
  void rest(size_t keep = 0) noexcept {
    const std::scoped_lock lock(mu_);
    drop(std::min(unused_, idle_.size() - std::min(idle_.size(), keep)));
    unused_ = idle_.size();
    slabs_.cool();
  }

 private:
  void take_back(Block block) noexcept {
    const std::scoped_lock lock(mu_);
    --lent_;
    if (idle_.size() < idle_max_) idle_.push_back(std::move(block));  // reserved: cannot throw
    count_idle();
  }

  // The oldest; needs mu_.
  void drop(size_t count) noexcept {
    idle_.erase(idle_.begin(), idle_.begin() + static_cast<std::ptrdiff_t>(count));
    unused_ -= std::min(unused_, count);
    count_idle();
  }
  void count_idle() noexcept { idle_count_.store(idle_.size(), std::memory_order_relaxed); }

  const size_t buffer_size_;
  const size_t count_max_;
  const size_t idle_max_;
  mutable std::mutex mu_;
  Slabs slabs_;              // guarded by mu_; outlives the blocks
  size_t lent_ = 0;          // guarded by mu_
  std::vector<Block> idle_;  // guarded by mu_; the one that came back last is lent first
  size_t unused_ = 0;        // guarded by mu_: so many were idle since the last rest()
  std::atomic<size_t> idle_count_{0};
};

}  // namespace braidfs::net
