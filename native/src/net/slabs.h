// Memory for many buffers of one size, carved from large mappings.
//
// Buffers lie side by side, and the kernel provides their pages many at a time. (aligned_alloc(3)
// spends two pages on a buffer of one page, and each page costs a fault when it is first touched:
// more than the copy into it.) Buffers that a device reads and writes use huge pages, because
// memory in one piece is one segment of the device's request
// (docs/measurements/2026-11-23-huge-pages.md); huge pages are provided when they are touched.
//
// A buffer that is given back stays warm (it keeps its pages) until cool(). Then its pages go back
// to the system and it is cold; its address stays reserved. Buffers that share a huge page leave it
// together: one that left alone would split the page.
//
// Threads: not thread-safe; the mutex of the pool that owns it guards it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace braidfs::net {

class Slabs {
 public:
  static constexpr size_t kSlabBytes = 4u << 20;  // address space; one buffer if that is larger
  static constexpr size_t kPopulateBytes = 256u << 10;  // pages provided at a time
  static constexpr size_t kPopulateMax = 1u << 20;      // larger buffers may be used only in part
  static constexpr size_t kHugePage = 2u << 20;
  static constexpr size_t kHugeSlabBytes = 8 * kHugePage;

  enum class Pages : uint8_t { kSmall, kHuge };

  // buffer_size is a multiple of the page size. Huge pages are used where the system has them.
  explicit Slabs(size_t buffer_size, Pages pages = Pages::kSmall) noexcept
      : buffer_size_(buffer_size), pages_(pages) {}
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  // Returns a buffer with arbitrary content; null when the system has no memory.
  std::byte* take();
  // The room is reserved, so this cannot throw.
  void give_back(std::byte* buffer) noexcept { warm_.push_back(buffer); }
  // Makes the kernel provide all pages of the buffer now, huge pages too.
  static void touch(std::span<std::byte> buffer) noexcept;
  // Gives the pages of all warm buffers back to the system; a huge page only when all of its
  // buffers are warm.
  void cool() noexcept;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* begin) const noexcept;
  };
  using Mapping = std::unique_ptr<std::byte, Unmap>;

  std::byte* map(size_t bytes) noexcept;
  bool map_another();
  bool leave_together() const noexcept {
    return pages_ == Pages::kHuge && kHugePage % buffer_size_ == 0;
  }
  void populate() noexcept;

  const size_t buffer_size_;
  const Pages pages_;
  std::vector<Mapping> mappings_;
  std::vector<std::byte*> warm_;  // the last one is taken next
  // Buffers without pages: runs of neighbours, each run from its highest address down.
  std::vector<std::byte*> cold_;
};

}  // namespace braidfs::net
