// Puts slices together from the READs that bring their parts. Pure; guarded by its owner.
// At most kSlicesMax are begun and kBytesMax lent at a time: the oldest is given up for a new one.
// Only a large part, or a slice's first one, begins a slice: random reads of a few pages leave
// nothing here.
#pragma once
#include <cstdint>
#include <list>
#include <optional>

#include "cache/store.h"

namespace braidfs::cache {

class Gather {
 public:
  static constexpr size_t kSlicesMax = 64;
  static constexpr uint64_t kBytesMax = 16u << 20;
  static constexpr uint32_t kBeginsBytes = 32u << 10;

  // The whole slice, when this part was the last one that was missing. length: of the slice.
  std::optional<Slice> add(const SliceKey& key, uint64_t stamp, uint32_t length, Part part);
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Begun {
    Slice slice;
    uint32_t filled = 0;
  };
  std::list<Begun>::iterator begun(const SliceKey& key, uint64_t stamp);
  void give_up(std::list<Begun>::iterator which);
  std::list<Begun> begun_;  // oldest first
  uint64_t bytes_ = 0;      // lent, by room
};

}  // namespace braidfs::cache
