// A bounded pool of equal buffers, aligned to 4096 bytes. Callers borrow a buffer through a movable
// lease (RAII).
//
// The pool makes buffers when they are first needed and keeps up to `idle_max` of them for reuse.
// At most `count_max` are lent at a time, so lease() may return an empty lease, and the caller must
// wait. An operation that uses a buffer holds its lease until the operation's completion was
// reaped: only then is the buffer used again.
//
// Threads: ANY THREAD, guarded by mu_. Invariant: the pool outlives its leases.
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

  // Returns an empty lease when count_max buffers are lent or memory is short.
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

  // Gives up to `count` idle buffers back to the system. Returns how many.
  size_t shrink(size_t count) noexcept {
    const std::scoped_lock lock(mu_);
    count = std::min(count, idle_.size());
    drop(count);
    if (count > 0) slabs_.cool();
    return count;
  }

  // Adds one idle buffer to the pool. False when the pool has `count` buffers already (lent and
  // idle), or when memory is short.
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
    // Touching the pages may take milliseconds, so it happens without the lock.
    Slabs::touch(made.span());
    return true;
  }

  // Gives back to the system the buffers that were idle all the time since the last call, but keeps
  // at least `keep` idle ones.
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
    // The room is reserved, so this cannot throw.
    if (idle_.size() < idle_max_) idle_.push_back(std::move(block));
    count_idle();
  }

  // Drops the buffers that came back longest ago. Needs mu_.
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
  Slabs slabs_;              // guarded by mu_; declared before idle_, so it outlives the blocks
  size_t lent_ = 0;          // guarded by mu_
  std::vector<Block> idle_;  // guarded by mu_; the buffer that came back last is lent first
  size_t unused_ = 0;  // guarded by mu_; how many were idle all the time since the last rest()
  std::atomic<size_t> idle_count_{0};
};

}  // namespace braidfs::net
