// The requests that Python works on. A slot is a number below 2^31 that stands in the pid field of
// an upcall; pyfuse3 passes it to the handler, which gets the true sender by it. At most kSlotsMax
// at a time. A slot number is reused only after its place was used 32,768 times, so that a late
// INTERRUPT cannot hit another request. ANY THREAD, guarded by mu_.
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
  bool is_call = false;  // Bridge::answer() answers it
};

class SlotTable {
 public:
  static constexpr uint32_t kIndexBits = 16;
  static constexpr uint32_t kSlotsMax = 1u << kIndexBits;

  // Nothing when the table is full, or has that unique already (a request that was sent again).
  std::optional<uint32_t> put(const Upcall& upcall);
  std::optional<Upcall> find(uint32_t slot) const;
  std::optional<uint32_t> slot_of(uint64_t unique) const;
  // The request was answered: removes it.
  std::optional<Upcall> take(uint64_t unique);
  // Removes all.
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
