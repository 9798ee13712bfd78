#include "net/slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace braidfs::net {

namespace {

bool is_boundary(const std::byte* at) noexcept {
  return reinterpret_cast<uintptr_t>(at) % Slabs::kHugePage == 0;
}

}  // namespace

void Slabs::Unmap::operator()(std::byte* begin) const noexcept { (void)munmap(begin, bytes); }

std::byte* Slabs::take() {
  if (warm_.empty()) {
    if (cold_.empty() && !map_another()) return nullptr;
    populate();
  }
  std::byte* buffer = warm_.back();
  warm_.pop_back();
  return buffer;
}

// Maps memory; null when the system has none. Mappings for huge pages begin at a multiple of a huge
// page.
std::byte* Slabs::map(size_t bytes) noexcept {
  const size_t more = pages_ == Pages::kHuge ? kHugePage : 0;
  void* memory =
      mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(memory);
  if (more == 0) return begin;
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (before > 0) (void)munmap(begin, before);
  begin += before;
  (void)munmap(begin + bytes, more - before);
  (void)madvise(begin, bytes, MADV_HUGEPAGE);
  return begin;
}

bool Slabs::map_another() {
  const size_t slab = pages_ == Pages::kHuge ? kHugeSlabBytes : kSlabBytes;
  const size_t count = std::max<size_t>(slab / buffer_size_, 1);
  const size_t bytes = count * buffer_size_;
  try {
    const size_t buffers = (mappings_.size() + 1) * count;
    warm_.reserve(std::max(buffers, warm_.capacity()));
    cold_.reserve(std::max(buffers, cold_.capacity()));
    mappings_.reserve(mappings_.size() + 1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  std::byte* begin = map(bytes);
  if (begin == nullptr) return false;
  mappings_.emplace_back(begin, Unmap{bytes});
  for (size_t index = count; index > 0; --index)
    cold_.push_back(begin + (index - 1) * buffer_size_);
  return true;
}

// Makes cold buffers warm: those that lie side by side, together.
void Slabs::populate() noexcept {
  std::byte* begin = cold_.back();
  std::byte* end = begin;
  do {
    warm_.push_back(end);
    cold_.pop_back();
    end += buffer_size_;
  } while (!cold_.empty() && cold_.back() == end &&
           static_cast<size_t>(end - begin) + buffer_size_ <= kPopulateBytes);
  if (pages_ == Pages::kSmall && buffer_size_ <= kPopulateMax) touch({begin, end});
}

// Kernels before 5.14 refuse this call; then the kernel provides each page when it is first
// touched.
void Slabs::touch(std::span<std::byte> buffer) noexcept {
  (void)madvise(buffer.data(), buffer.size(), MADV_POPULATE_WRITE);
}

void Slabs::cool() noexcept {
  std::ranges::sort(warm_);
  size_t kept = 0;
  for (size_t first = 0; first < warm_.size();) {
    size_t last = first + 1;
    while (last < warm_.size() && warm_[last] == warm_[last - 1] + buffer_size_) ++last;
    size_t from = first;
    size_t to = last;
    if (leave_together()) {
      while (from < to && !is_boundary(warm_[from])) ++from;
      while (from < to && !is_boundary(warm_[to - 1] + buffer_size_)) --to;
    }
    if (from < to) (void)madvise(warm_[from], (to - from) * buffer_size_, MADV_DONTNEED);
    for (size_t index = to; index > from; --index)
      // The room is reserved, so this cannot throw.
      cold_.push_back(warm_[index - 1]);
    for (size_t index = first; index < from; ++index) warm_[kept++] = warm_[index];
    for (size_t index = to; index < last; ++index) warm_[kept++] = warm_[index];
    first = last;
  }
  warm_.resize(kept);
}

}  // namespace braidfs::net
