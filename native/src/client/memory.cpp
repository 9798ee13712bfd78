#include "client/memory.h"

#include <algorithm>
#include <limits>

namespace braidfs::client {

namespace {

constexpr size_t kIdleBytesMax = 16u << 20;   // idle bytes of a size that pieces do not use
constexpr uint64_t kIdleBesides = 32u << 20;  // may stay idle even if the budgets are used up
constexpr uint64_t kLaneReserve = 4u << 20;   // one lane may take in so much before it sees full()
constexpr uint64_t kSqueezed = 4;
constexpr auto kHuge = net::Slabs::Pages::kHuge;
constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();  // the budgets bound the pools

uint64_t behind_max(uint64_t dirty_bytes_max, uint32_t lane_count) {
  const uint64_t reserve = kLaneReserve * lane_count;
  return std::max(dirty_bytes_max / 2, dirty_bytes_max - std::min(dirty_bytes_max, reserve));
}

size_t idle(uint32_t size) { return kIdleBytesMax / size; }
size_t idle_pieces(const MemoryLimits& limits, uint32_t size) {
  return (limits.dirty_bytes_max + limits.held_bytes_max) / size;
}

}  // namespace

Memory::Memory(MemoryLimits limits, uint32_t lane_count)
    : limits_(limits),
      behind_max_(behind_max(limits.dirty_bytes_max, lane_count)),
      full_at_(std::max(limits.dirty_bytes_max, behind_max_ + kLaneReserve)),
      kept_max_(limits.dirty_bytes_max + limits.held_bytes_max + kIdleBesides),
      pools_{{{kSizes[0], kUnbounded, idle_pieces(limits, kSizes[0])},
              {kSizes[1], kUnbounded, idle_pieces(limits, kSizes[1])},
              {kSizes[2], kUnbounded, idle_pieces(limits, kSizes[2])},
              {kSizes[3], kUnbounded, idle_pieces(limits, kSizes[3])},
              {kSizes[4], kUnbounded, idle(kSizes[4])},
              {kSizes[1], kUnbounded, limits.read_bytes_max / kSizes[1], kHuge},
              {kSizes[2], kUnbounded, limits.read_bytes_max / kSizes[2], kHuge},
              {kSizes[3], kUnbounded, limits.read_bytes_max / kSizes[3], kHuge}}} {}

uint32_t Memory::size_for(uint64_t length) noexcept {
  const auto found =
      std::find_if(kSizes.begin(), kSizes.end(), [&](uint32_t size) { return size >= length; });
  return found == kSizes.end() ? kSizes.back() : *found;
}

Buffer Memory::charged(Buffer::Account which, uint64_t limit, uint32_t size) {
  if (at(which).fetch_add(size) + size <= limit) {
    if (auto lease = pool(which, size).lease()) {
      trim();
      return Buffer(*this, which, std::move(lease));
    }
  }
  at(which) -= size;
  return {};
}

net::BufferPool& Memory::pool(Buffer::Account which, uint32_t size) noexcept {
  const auto index =
      static_cast<size_t>(std::find(kSizes.begin(), kSizes.end(), size) - kSizes.begin());
  const bool huge = which == Buffer::Account::kRead && index - kFirstHuge < kHugeCount;
  return pools_[huge ? kSizes.size() + index - kFirstHuge : index];
}

uint64_t Memory::idle_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool.idle() * pool.buffer_size();
  return bytes;
}

void Memory::trim() noexcept {
  const uint64_t kept =
      account(Buffer::Account::kDirty) + account(Buffer::Account::kHeld) + idle_bytes();
  uint64_t excess = kept - std::min(kept, kept_max_);
  for (size_t index = pools_.size(); excess > 0 && index > 0; --index) {
    net::BufferPool& pool = pools_[index - 1];
    const size_t size = pool.buffer_size();
    excess -= std::min(excess, pool.shrink((excess + size - 1) / size) * size);
  }
}

void Memory::rest(Ready ready) noexcept {
  net::BufferPool* of_pieces = &pool(Buffer::Account::kDirty, kPieceMax);
  net::BufferPool* of_reads = &pool(Buffer::Account::kRead, kPieceMax);
  for (auto& pool : pools_) {
    const uint64_t bytes = &pool == of_pieces ? ready.pieces : &pool == of_reads ? ready.reads : 0;
    const size_t count = bytes / kPieceMax;
    pool.rest(count);
    while (pool.warm_one(count)) {
    }
  }
}

void Memory::give_back() noexcept {
  for (auto& pool : pools_) pool.shrink(pool.idle());
}

Buffer Memory::dirty(uint32_t size, bool caller_waits) {
  const uint64_t behind = is_short_ ? behind_max_ / kSqueezed : behind_max_;
  return charged(Buffer::Account::kDirty, caller_waits ? ~uint64_t{0} : behind, size);
}

Buffer Memory::read(uint32_t size) {
  return charged(Buffer::Account::kRead, limits_.read_bytes_max, size);
}

Buffer Memory::receive_buffer() {
  return charged(Buffer::Account::kReceive, ~uint64_t{0}, kPieceMax);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::exchange(other.memory_, nullptr);
  account_ = other.account_;
  lease_ = std::move(other.lease_);
  return *this;
}

void Buffer::reset() noexcept {
  if (!lease_) return;
  memory_->at(account_) -= span().size();
  lease_.reset();
  memory_->trim();
}

void Buffer::move_to(Account account) noexcept {
  if (!lease_ || account == account_) return;
  memory_->at(account_) -= span().size();
  account_ = account;
  memory_->at(account_) += span().size();
}

}  // namespace braidfs::client
