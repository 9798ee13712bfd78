// Assembles slices from the READs that bring their parts.
//
// At most kSlicesMax slices are begun and kBytesMax bytes lent at a time; a new slice replaces the
// oldest. Only a large part, or the first part of a slice, begins a slice: random reads of a few
// pages leave nothing here. Pure; guarded by its owner.
#pragma once
#include <cstdint>
#include <list>
#include <optional>

#include "cache/store.h"

namespace braidfs::cache {

class SliceAssembly {
 public:
  static constexpr size_t kSlicesMax = 64;
  static constexpr uint64_t kBytesMax = 16u << 20;
  static constexpr uint32_t kBeginsBytes = 32u << 10;

  // Adds a part of a slice of `length` bytes. Returns the whole slice, when this was its last
  // missing part.
  std::optional<Slice> add(const SliceKey& key, uint64_t stamp, uint32_t length, Part part);
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Begun {
    Slice slice;
    uint32_t filled = 0;
  };
  std::list<Begun>::iterator find_begun(const SliceKey& key, uint64_t stamp);
  void give_up(std::list<Begun>::iterator which);
  std::list<Begun> begun_;  // oldest first
  uint64_t bytes_ = 0;      // lent; counts the parts' whole memory
};

}  // namespace braidfs::cache
