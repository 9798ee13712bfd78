// Requests that Python is working on. A slot is a number below 2^31 that stands in the pid field of
// an upcall; pyfuse3 shows it to the handler, which asks for the true sender by it. ANY THREAD,
// guarded by mu_. At most kSlotsMax at a time; a slot number is reused only after 32,768 others had
// its place, so that a late INTERRUPT cannot hit another request.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fuse/request.h"

namespace braidfs::fuse {

struct Upcall {
  Channel channel = 0;
  uint64_t unique = 0;
  uint32_t pid = 0;
  uint32_t opcode = 0;
  uint32_t bits = 0;  // kUpcall* of parse.h
  uint64_t nodeid = 0;
  bool is_call = false;  // answered by Bridge::answer()
};

class SlotTable {
 public:
  static constexpr uint32_t kIndexBits = 16;
  static constexpr uint32_t kSlotsMax = 1u << kIndexBits;

  // Nothing when the table is full, or when that unique is in it already (a resent request).
  std::optional<uint32_t> put(const Upcall& upcall);
  std::optional<Upcall> find(uint32_t slot) const;
  std::optional<uint32_t> slot_of(uint64_t unique) const;
  // The answer came: forgets the request.
  std::optional<Upcall> take(uint64_t unique);
  // Forgets all.
  std::vector<Upcall> take_all();
  size_t count() const;

 private:
  struct Place {
    Upcall upcall;
    uint32_t generation = 0;  // 15 bits
    bool used = false;
  };
  uint32_t slot_at(uint32_t index) const { return places_[index].generation << kIndexBits | index; }
  Upcall release(uint32_t index);

  mutable std::mutex mu_;
  std::vector<Place> places_;
  std::vector<uint32_t> free_;
  std::unordered_map<uint64_t, uint32_t> index_of_;  // by unique
};

}  // namespace braidfs::fuse
