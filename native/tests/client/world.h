// A stage (stage.h) on which a seed picks everything: targets lose power, connections break and the
// file is cut while it is written, read and synced. A model of the file says what must come of it.
//
// What must hold, always: an fsync that is answered with success means that every byte whose write
// was answered before the fsync began is durable at its target, or what was written over it since
// (and nothing that was cut off); a read gives, of every byte, what was written last when it began,
// or something younger; nothing fails, since all that is not durable is held by the client;
// everything is answered.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "stage.h"

namespace braidfs::client::rig {

class World final : public Stage {
 public:
  // Of the file's end: by Python, as the kernel has asked; or by lanes, which tell later (cuts.h).
  // Then a size that the metaserver is told must not bring back what was cut off before, should the
  // client die then.
  enum class Cuts : uint8_t { kNone, kByPython, kByLanes };
  World(uint64_t seed, Cuts cuts);
  // Empty: all held.
  std::string run();

 private:
  static constexpr uint32_t kLanes = 3;
  static constexpr uint32_t kTargets = 2;
  static constexpr uint32_t kSteps = 1200;
  static constexpr uint32_t kLossesMax = 12;  // each costs a drain a round, of which it has 16
  static constexpr uint32_t kChunks = 4;
  static constexpr uint32_t kUnit = 512;  // written with the number of its write, or not at all
  static constexpr uint32_t kUnitsOfChunk = 24;  // at its beginning; the rest is never written
  static constexpr uint32_t kUnits = kChunks * kUnitsOfChunk;
  using Values = std::vector<uint64_t>;

  // What was written to a unit, in order.
  struct Unit {
    Values written{0};
    size_t answered = 0;  // index of the last one whose writer has its answer
    size_t cut = 0;       // index of the last cut that took it
    bool busy = false;    // a write is under way
  };
  enum class Kind : uint8_t { kWrite, kRead, kSync };
  struct Operation {
    Kind kind = Kind::kWrite;
    uint32_t first = 0;
    uint32_t count = 0;
    uint64_t value = 0;
    std::vector<size_t> least{};  // by unit: the index that was answered when it began
  };
  enum class Cut : uint8_t { kNone, kAsked, kDraining, kCutting };

  uint32_t pick(uint32_t count) { return static_cast<uint32_t>(random_() % count); }
  bool one_in(uint32_t count) { return pick(count) == 0; }
  static uint64_t offset_of(uint32_t unit) {
    return uint64_t{unit / kUnitsOfChunk} * kChunkSize + uint64_t{unit % kUnitsOfChunk} * kUnit;
  }
  void fail(const std::string& what);

  void step();
  void run_lane();
  void start_something();
  void start_write();
  void start_read();
  void start_sync();
  void start_cut();
  void begin_cut();
  void go_on_cutting();
  void end_cut();
  void ask_cut();
  void cut_by_lane();
  void go_on_telling();
  bool cut_target(uint64_t size);  // the next one; false: all are
  void commit();
  void check_commit();
  uint64_t value_at(const std::map<FakeStore::Key, Bytes>& objects, uint32_t unit,
                    uint32_t stripe) const;
  std::vector<size_t> answered() const;
  bool check(const Operation& operation, uint32_t unit, uint64_t value, const char* what);
  void check_durable(const Operation& operation);
  void check_read(const Operation& operation, const Bytes& bytes);
  void replied(uint64_t unique, int error, Bytes bytes) noexcept override;
  void told(Event event) override;

  void serve_one(Target& target);
  void break_connections(Target& target);
  void lose_power(Target& target);
  void settle();

  std::minstd_rand random_;
  const Cuts cuts_;
  std::string failure_;
  uint32_t steps_ = 0;
  std::array<uint32_t, kLanes> held_up_until_{};  // step

  std::vector<Unit> units_{kUnits};
  std::map<uint64_t, Operation> operations_;
  uint64_t unique_ = 0;
  uint64_t value_ = 0;
  uint32_t epoch_ = 0;
  uint32_t losses_ = 0;

  Cut cut_ = Cut::kNone;
  uint32_t cut_at_ = 0;  // unit
  uint32_t targets_cut_ = 0;
  uint64_t client_size_ = 0;
  bool sync_failed_ = false;    // the last one
  bool wants_cut_ = false;      // nothing is written until lanes have been asked for it
  std::deque<Event> tellings_;  // of cuts, to the metaserver
  bool is_telling_ = false;
  uint32_t failures_ = 0;  // of these
};

}  // namespace braidfs::client::rig
