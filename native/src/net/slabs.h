// Memory for many buffers of one size: carved from large mappings, so that buffers lie side by side
// and their pages come from the kernel many at a time. (aligned_alloc(3) spends two pages on a
// buffer of one, and each page that is touched first costs a fault: more than the copy into it.)
//
// On huge pages (of buffers that a device reads and writes: what lies in one piece of memory is one
// segment of its request, docs/performance-history.md) they come as they are touched.
//
// What is given back stays warm until cool(): then its pages are the system's again, the addresses
// stay. Buffers that divide a huge page leave it together: one that went alone would split it.
// Not thread-safe: the pool's mutex guards it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace braidfs::net {

class Slabs {
 public:
  static constexpr size_t kSlabBytes = 4u << 20;  // of address space, or one buffer if that is more
  static constexpr size_t kPopulateBytes = 256u << 10;  // of pages at a time
  static constexpr size_t kPopulateMax = 1u << 20;      // larger buffers may be used in part
  static constexpr size_t kHugePage = 2u << 20;
  static constexpr size_t kHugeSlabBytes = 8 * kHugePage;

  enum class Pages : uint8_t { kSmall, kHuge };

  // buffer_size: a multiple of the page size. Huge pages where the system has them.
  explicit Slabs(size_t buffer_size, Pages pages = Pages::kSmall) noexcept
      : buffer_size_(buffer_size), pages_(pages) {}
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  // A buffer with any content; null when the system has no memory.
  std::byte* take();
  void give_back(std::byte* buffer) noexcept { warm_.push_back(buffer); }  // reserved: cannot throw
  // All its pages are there from now on, on huge pages too.
  static void touch(std::span<std::byte> buffer) noexcept;
  // The pages of all buffers that are here go back to the system; of a huge page only with all of
  // its.
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
  std::vector<std::byte*> cold_;  // without pages; runs of them, each from its highest address down
};

}  // namespace braidfs::net
