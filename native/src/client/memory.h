// The memory of the data path: buffers of a few sizes, and budgets for what they are used for.
//
// There are three budgets, counted by the capacity of buffers, which is the memory that they really
// take: dirty (bytes that no target has acknowledged yet), held (bytes that are acknowledged and
// not synced, kept to be sent again, rule 22) and read (bytes on their way to the kernel). Besides,
// each lane has one receive buffer, into which the payload of the next WRITE is read. Write-behind
// may fill the dirty budget only up to `behind_max`; the rest is for writes whose caller waits, so
// that these always make progress. A buffer moves from dirty to held with its piece.
//
// Returned buffers are kept for reuse, since fresh pages cost as much as the copy into them: as
// many as fit into the budgets beside those in use, until rest() finds that nobody needed them.
// Buffers that are read into lie on huge pages, so the disk of the local cache, sockets and
// /dev/fuse take them in one piece. Invariant: each buffer counts in exactly one account while it
// is in use. Threads: ANY THREAD.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "net/buffer_pool.h"

namespace braidfs::client {

class Memory;

// A buffer and its share of a budget; both end with it. It can be moved, but not copied.
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
  void move_to(Account account) noexcept;  // between dirty and held
  // Swaps memory with another buffer of the same size. Their accounts stay.
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
  static constexpr uint32_t kPieceMax = 1u << 20;  // the largest buffer of a written piece
  static constexpr uint64_t kOverfullBytes = 64u << 20;

  Memory(MemoryLimits limits, uint32_t lane_count);

  // The smallest buffer size that holds `length`, or the largest one if none does.
  static uint32_t size_for(uint64_t length) noexcept;

  // Empty if the budget does not allow it. If the caller waits, only full() is the limit; it is
  // checked before the request is read.
  Buffer dirty(uint32_t size, bool caller_waits);
  Buffer read(uint32_t size);
  Buffer receive_buffer();  // has kPieceMax bytes; empty if memory is short

  bool held_over() const noexcept {
    return account(Buffer::Account::kHeld) > limits_.held_bytes_max;
  }
  // There is no room even for writes whose caller waits, so hardly any further request should be
  // read.
  bool full() const noexcept { return account(Buffer::Account::kDirty) > full_at_; }
  // No further request should be read at all.
  bool overfull() const noexcept {
    return account(Buffer::Account::kDirty) > full_at_ + kOverfullBytes;
  }
  uint64_t idle_bytes() const noexcept;
  // It is called at start and then every few seconds: gives back the idle buffers that nobody has
  // needed since the last call, except as many bytes as are to stay ready, and allocates what is
  // missing of those. Thus their pages are not made while a training program waits for its
  // checkpoint or its restore.
  struct Ready {
    uint64_t pieces = 0;
    uint64_t reads = 0;  // buffers of kPieceMax bytes
  };
  void rest(Ready ready) noexcept;
  // Gives back all idle buffers.
  void give_back() noexcept;
  // If the machine's memory is short, write-behind gets a quarter of its budget, so writers wait
  // sooner.
  void squeeze(bool is_short) noexcept { is_short_ = is_short; }
  uint64_t account(Buffer::Account which) const noexcept {
    return bytes_[static_cast<size_t>(which)].load(std::memory_order_relaxed);
  }

 private:
  friend class Buffer;
  // Of kSizes, kHugeCount sizes from this index on have huge pages.
  static constexpr size_t kFirstHuge = 1;
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
  const uint64_t kept_max_;  // no buffer stays idle if more bytes are in use and idle together
  std::array<std::atomic<uint64_t>, 5> bytes_{};
  // Buffers of the last kHugeCount pools are read into.
  std::array<net::BufferPool, kSizes.size() + kHugeCount> pools_;
};

}  // namespace braidfs::client
