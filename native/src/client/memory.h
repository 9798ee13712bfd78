// The memory of the file-byte path: buffers in four sizes, and how many bytes of them may be what.
//
// Three budgets, counted by buffer capacity so that they are honest about memory: dirty (bytes not
// yet acknowledged by a target), held (acknowledged, not synced: kept to be sent again, rule 22)
// and read (bytes on their way to the kernel). Besides, each lane has a buffer into which the
// payload of the next WRITE is read (receive_buffer). Write-behind may fill dirty only to
// `behind_max`; the rest is for writes whose caller waits, so that these always move. Buffers go
// from dirty to held.
//
// Buffers that came back are kept for reuse, since fresh pages cost as much as the copy into them:
// as many as fit into the budgets beside those in use, until rest() finds that nobody needed them.
// Those that are read into lie on huge pages: the local cache's disk, sockets and /dev/fuse take
// them in one piece. ANY THREAD.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "net/buffer_pool.h"

namespace braidfs::client {

class Memory;

// A buffer and its place in a budget; both end with it. Moved, never copied.
class Buffer {
 public:
  enum class Account : uint8_t { kDirty, kHeld, kRead, kReceive, kAnnounced };

  Buffer() noexcept = default;
  Buffer(Memory& memory, Account account, net::BufferPool::Lease lease) noexcept
      : memory_(&memory), account_(account), lease_(std::move(lease)) {}
  Buffer(Buffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        account_(other.account_),
        lease_(std::move(other.lease_)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  explicit operator bool() const noexcept { return static_cast<bool>(lease_); }
  std::span<std::byte> span() const noexcept { return lease_.span(); }
  void reset() noexcept;
  void move_to(Account account) noexcept;  // from dirty to held, or back
  // Another one of the same size gets this one's memory and gives its own; their accounts stay.
  void trade(Buffer& other) noexcept { std::swap(lease_, other.lease_); }

 private:
  Memory* memory_ = nullptr;
  Account account_ = Account::kDirty;
  net::BufferPool::Lease lease_;
};

struct MemoryLimits {
  uint64_t dirty_bytes_max = 256u << 20;
  uint64_t held_bytes_max = 256u << 20;
  uint64_t read_bytes_max = 128u << 20;
};

class Memory {
 public:
  static constexpr std::array<uint32_t, 5> kSizes = {4u << 10, 64u << 10, 256u << 10, 1u << 20,
                                                     16u << 20};
  static constexpr uint32_t kPieceMax = 1u << 20;  // largest buffer of a written piece
  static constexpr uint64_t kOverfullBytes = 64u << 20;

  Memory(MemoryLimits limits, uint32_t lane_count);

  // The smallest buffer size that holds `length` (the largest one if none does).
  static uint32_t size_for(uint64_t length) noexcept;

  // Empty when the budget does not allow it; a buffer whose caller waits is only limited by full(),
  // which is asked before its request is read.
  Buffer dirty(uint32_t size, bool caller_waits);
  Buffer read(uint32_t size);
  Buffer receive_buffer();  // of kPieceMax; empty when memory is short

  bool held_over() const noexcept {
    return account(Buffer::Account::kHeld) > limits_.held_bytes_max;
  }
  // No room even for writes whose caller waits: hardly a further request should be read ...
  bool full() const noexcept { return account(Buffer::Account::kDirty) > full_at_; }
  // ... and none at all.
  bool overfull() const noexcept {
    return account(Buffer::Account::kDirty) > full_at_ + kOverfullBytes;
  }
  uint64_t idle_bytes() const noexcept;
  // Called at first, and every few seconds: gives back the idle buffers that nobody needed since
  // the last call, but for so many bytes that stay ready, and makes what is missing of those. Their
  // pages are not to be made while a training waits for its checkpoint, or for its restore.
  struct Ready {
    uint64_t pieces = 0;
    uint64_t reads = 0;  // those of kPieceMax
  };
  void rest(Ready ready) noexcept;
  // All that is idle.
  void give_back() noexcept;
  // Where the machine's memory is short, write-behind has a quarter of its budget, and writers wait
  // sooner.
  void squeeze(bool is_short) noexcept { is_short_ = is_short; }
  uint64_t account(Buffer::Account which) const noexcept {
    return bytes_[static_cast<size_t>(which)].load(std::memory_order_relaxed);
  }

 private:
  friend class Buffer;
  static constexpr size_t kFirstHuge = 1;  // of kSizes; kHugeCount of them
  static constexpr size_t kHugeCount = 3;
  Buffer charged(Buffer::Account account, uint64_t limit, uint32_t size);
  net::BufferPool& pool(Buffer::Account account, uint32_t size) noexcept;
  void trim() noexcept;
  std::atomic<uint64_t>& at(Buffer::Account which) noexcept {
    return bytes_[static_cast<size_t>(which)];
  }

  const MemoryLimits limits_;
  const uint64_t behind_max_;
  std::atomic<bool> is_short_ = false;
  const uint64_t full_at_;
  const uint64_t kept_max_;  // bytes in use and idle together, beyond which none stay idle
  std::array<std::atomic<uint64_t>, 5> bytes_{};
  std::array<net::BufferPool, kSizes.size() + kHugeCount> pools_;  // the last ones are read into
};

}  // namespace braidfs::client
