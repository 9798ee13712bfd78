// What a file may hold, as the programs that wrote it know it: the promises of docs/SEMANTICS.md.
//
// A file is units of 512 bytes. Each write has a value of its own and fills its units with it, so
// what is read tells which write it is of. A unit never goes back before the last write that was
// answered when the read began; and what fsync answered for survives any loss of power.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace braidfs::world {

class Truth {
 public:
  static constexpr uint32_t kUnit = 512;
  // By unit: the place of a value among those that were written there.
  using Places = std::vector<uint32_t>;

  explicit Truth(uint32_t units) : units_(units) {}

  uint32_t count() const noexcept { return static_cast<uint32_t>(units_.size()); }
  bool is_free(uint32_t first, uint32_t count) const;  // nobody writes there
  bool is_free() const { return is_free(0, count()); }
  void writes(uint32_t first, uint32_t count, uint64_t value);
  void wrote(uint32_t first, uint32_t count, bool is_durable);
  Places answered() const;
  void synced(const Places& answered);  // they had been answered when the fsync began

  // Empty: each value may be there. `least`: the oldest places that may be.
  std::string check(const Places& least, uint32_t first, std::span<const uint64_t> values) const;
  Places safe() const;

 private:
  struct Unit {
    std::vector<uint64_t> values{0};
    uint32_t answered = 0;  // the place of the last one whose writer was answered
    uint32_t safe = 0;      // that of the last one that is durable for sure
    bool is_busy = false;
  };
  std::vector<Unit> units_;
};

}  // namespace braidfs::world
