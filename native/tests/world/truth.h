// What a file may hold, as the programs that wrote it know it: the promises of docs/SEMANTICS.md.
//
// A file is units of 512 bytes. Each write has a value of its own and fills its units with it, so
// what is read tells which write it is of. A unit never goes back before the last write that was
// answered when the read began; and what fsync answered for survives any loss of power.
//
// What a client that ended had written and not closed may be there or not, and so may what nobody
// holds any more, if all replicas lost power before it was synced. What is read then is there from
// then on.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "clockwork.h"

namespace braidfs::world {

class Truth {
 public:
  static constexpr uint32_t kUnit = 512;
  // By unit: the place of a value among those that were written there.
  using Places = std::vector<uint32_t>;
  // What a read may give, as it was when it began.
  struct Since {
    Places answered{};
    Places losses{};
  };

  explicit Truth(uint32_t units) : units_(units) {}

  uint32_t count() const noexcept { return static_cast<uint32_t>(units_.size()); }
  bool is_free(uint32_t first, uint32_t count) const;  // nobody writes there
  bool is_free() const { return is_free(0, count()); }
  // holder: who has the bytes in its memory, a session.
  void writes(uint32_t first, uint32_t count, uint64_t value, uint64_t holder);
  void wrote(uint32_t first, uint32_t count, bool is_durable);
  void failed(uint32_t first, uint32_t count);  // it may be there or not
  // A cut dropped what its client had not sent yet: targets may have anything that was not closed.
  void uncovered(uint32_t first, uint32_t count);
  Since since() const;
  // Of what this session has written last; of other units the oldest place.
  Places answered_to(uint64_t session) const;
  void synced(const Places& answered);  // they had been answered when the fsync began
  void closed(const Places& answered);  // the same of a close

  void died(uint64_t holder);
  void let_go(uint64_t holder);
  // Its lease is a shared one: others may read the file. What is lost now comes back when the
  // holder hears of that.
  void has_closed(uint64_t holder);
  void lost_power(uint32_t unit, Time when);  // all replicas did, since then
  // An error may say that bytes are lost.
  void may_have_lost() noexcept { has_lost_ = true; }
  bool has_lost() const noexcept { return has_lost_; }

  // Empty: each value may be there. `least`: the oldest places that may be.
  std::string check(const Places& least, uint32_t first, std::span<const uint64_t> values) const;
  std::string check(const Since& since, uint32_t first, std::span<const uint64_t> values) const;
  // A read gave these values, under one lease.
  void saw(const Since& since, uint32_t first, std::span<const uint64_t> values);
  Places safe() const;

 private:
  struct Unit {
    std::vector<uint64_t> values{0};
    std::vector<uint32_t> safe_at_losses;  // `safe`, each time that values may have been lost
    uint32_t answered = 0;                 // the place of the last one that must be there
    uint32_t closed = 0;         // that of the last one that is there also without its client
    uint32_t safe = 0;           // that of the last one that is durable for sure
    uint64_t holder = 0;         // of the one that must be there
    uint64_t newest_holder = 0;  // of the newest one, until it must be there
    uint64_t writer = 0;         // of the newest value
    uint64_t answered_to = 0;
    Time written_at{};            // the newest value
    Time sent_at{};               // the one that must be there: targets may have had it since then
    bool is_newest_lost = false;  // nobody holds it, and all replicas lost power
    bool is_closed = false;       // by its holder
    bool is_busy = false;
    uint32_t losses() const noexcept { return static_cast<uint32_t>(safe_at_losses.size()); }
    uint32_t newest() const noexcept { return static_cast<uint32_t>(values.size()) - 1; }
  };
  std::string wrong(uint32_t at, uint32_t least, uint64_t value) const;
  std::vector<Unit> units_;
  bool has_lost_ = false;
};

}  // namespace braidfs::world
