#include "server/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace braidfs::server {

namespace {

constexpr size_t kAlignment = limits::kBlockSize;
constexpr size_t kWarmSize = 1u << 20;  // the size of most large payloads

}  // namespace

void Buffer::Free::operator()(std::byte* memory) const noexcept {
  if (slabs_ != nullptr) {
    slabs_->give_back(memory);
  } else {
    std::free(memory);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(std::move(other.memory_)),
      size_(std::exchange(other.size_, 0)),
      pool_(std::exchange(other.pool_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::move(other.memory_);
  size_ = std::exchange(other.size_, 0);
  pool_ = std::exchange(other.pool_, nullptr);
  return *this;
}

void Buffer::reset() {
  if (memory_ == nullptr) return;
  pool_->give_back(std::move(memory_), size_);
  size_ = 0;
  pool_ = nullptr;
}

BufferPool::BufferPool(size_t bytes_max, Counters& counters)
    : bytes_max_(bytes_max), counters_(counters) {
  for (size_t size_class = kFirstHuge; size_class < kClassCount; ++size_class) {
    slabs_[size_class] =
        std::make_unique<net::Slabs>(bytes_of(size_class), net::Slabs::Pages::kHuge);
  }
}

BufferPool::~BufferPool() { subtract(counters_.buffer_bytes, kept_); }

size_t BufferPool::class_of(size_t size) {
  const size_t blocks = (size + kAlignment - 1) / kAlignment;
  return blocks <= 3 ? 0 : static_cast<size_t>(std::bit_width(blocks - 3));
}

size_t BufferPool::bytes_of(size_t size_class) {
  return ((size_t{1} << size_class) + 2) * kAlignment;
}

Buffer BufferPool::take(size_t size) {
  Buffer taken;
  if (size > kSizeMax) return taken;
  const size_t size_class = class_of(size);
  const size_t bytes = bytes_of(size_class);
  auto& kept = free_[size_class];
  if (!kept.empty()) {
    taken.memory_ = std::move(kept.back());
    kept.pop_back();
    kept_ -= bytes;
  } else {
    drop_kept(bytes);
    if (in_use_ + kept_ + bytes <= bytes_max_) {
      taken.memory_ = make(size_class);
    }
    if (taken.memory_ == nullptr) {
      lacking_ = true;
      return taken;
    }
    add(counters_.buffer_bytes, bytes);
  }
  in_use_ += bytes;
  taken.size_ = bytes;
  taken.pool_ = this;
  return taken;
}

void BufferPool::warm(size_t bytes) {
  std::vector<Buffer> made;
  const size_t each = bytes_of(class_of(kWarmSize));
  for (bytes = std::min(bytes, bytes_max_ / 4); bytes >= each; bytes -= each) {
    made.push_back(take(each));
    if (!made.back()) break;
    net::Slabs::touch(std::as_writable_bytes(std::span(made.back().data(), made.back().size())));
  }
  clear_lacking();
}

// Null when the system has no memory.
Buffer::Memory BufferPool::make(size_t size_class) {
  net::Slabs* const slabs = slabs_[size_class].get();
  if (slabs != nullptr) return {slabs->take(), Buffer::Free(slabs)};
  return {static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_of(size_class))),
          Buffer::Free()};
}

void BufferPool::give_back(Buffer::Memory memory, size_t size) {
  in_use_ -= size;
  kept_ += size;
  free_[class_of(size)].push_back(std::move(memory));
}

void BufferPool::drop_kept(size_t bytes_needed) {
  for (size_t size_class = kClassCount; size_class-- > 0;) {
    auto& kept = free_[size_class];
    const size_t before = kept.size();
    while (!kept.empty() && in_use_ + kept_ + bytes_needed > bytes_max_) {
      kept.pop_back();
      kept_ -= bytes_of(size_class);
      subtract(counters_.buffer_bytes, bytes_of(size_class));
    }
    if (kept.size() < before && slabs_[size_class]) slabs_[size_class]->cool();
  }
}

}  // namespace braidfs::server
