// Memory for payloads: aligned to 4096 so that O_DIRECT works, and bounded in total.
//
// A buffer goes back when its owner drops it. The pool outlives its buffers: the lane owns both,
// and ends its requests first. Freed buffers are kept for the next request of their size class;
// near the bound, kept buffers of other classes are freed to make room. Large buffers use huge
// pages.
//
// Threads: LANE ONLY.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "braidfs/limits.h"
#include "net/slabs.h"
#include "server/counters.h"

namespace braidfs::server {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  explicit operator bool() const { return memory_ != nullptr; }
  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  void reset();

 private:
  friend class BufferPool;
  class Free {
   public:
    Free() noexcept : slabs_(nullptr) {}  // memory from malloc(3)
    explicit Free(net::Slabs* slabs) noexcept : slabs_(slabs) {}
    void operator()(std::byte* memory) const noexcept;

   private:
    net::Slabs* slabs_;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  Memory memory_;
  size_t size_ = 0;
  BufferPool* pool_ = nullptr;
};

class BufferPool {
 public:
  BufferPool(size_t bytes_max, Counters& counters);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Lends a buffer; an empty one when the bound is reached or the system has no memory: then ask
  // again after another buffer went back. size is at most kSizeMax.
  Buffer take(size_t size);
  // Makes large buffers of `bytes` in all, at most a quarter of the bound, with their pages.
  void warm(size_t bytes);
  size_t bytes_in_use() const { return in_use_; }
  size_t bytes_free() const { return bytes_max_ - in_use_; }
  bool lacking() const { return lacking_; }  // a take() has failed since the last clear_lacking()
  void clear_lacking() { lacking_ = false; }

  static constexpr size_t kSizeMax = limits::kFramePayloadLengthMax + 2 * limits::kBlockSize;

 private:
  friend class Buffer;
  static constexpr size_t kClassCount = 13;  // 2^n blocks and two more, for n = 0..12
  static constexpr size_t kFirstHuge = 7;    // half a MiB
  static size_t class_of(size_t size);
  static size_t bytes_of(size_t size_class);
  void give_back(Buffer::Memory memory, size_t size);
  Buffer::Memory make(size_t size_class);
  void drop_kept(size_t bytes_needed);

  const size_t bytes_max_;
  Counters& counters_;
  size_t in_use_ = 0;
  size_t kept_ = 0;
  bool lacking_ = false;
  // Slabs of the large classes; declared before free_, so they outlive its buffers.
  std::array<std::unique_ptr<net::Slabs>, kClassCount> slabs_;
  std::array<std::vector<Buffer::Memory>, kClassCount> free_;
};

}  // namespace braidfs::server
