// A world: a client, storage servers and a network, the real programs in one thread and in a time
// of their own. One seed decides everything: what programs do, who goes on, how long messages and
// workers take, what breaks.
//
// What must hold: see truth.h, and that everything is answered when faults have ended.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "clockwork.h"
#include "loops.h"
#include "metaserver.h"
#include "mount.h"
#include "mutants.h"
#include "network.h"
#include "programs.h"
#include "storage_host.h"

namespace braidfs::world {

class World {
 public:
  explicit World(uint64_t seed, Mutant mutant = Mutant::kNone, bool prints = false);
  ~World();

  std::string run();  // empty: all that was promised holds
  uint64_t hash() const noexcept { return clockwork_.trace.hash(); }

 private:
  enum class Fault : uint8_t {
    kConnection,
    kKill,
    kRestart,
    kPowerLoss,
    kDeathWithin,  // in the middle of what it does
    kLease,
    kSlowMetaserver,
    kView,  // a newer one, of the same bytes
    kBlackout,
    kThread,  // it does not run for a while
    kCount
  };
  void build_hosts();
  void build_client();
  // False: it is not over by then.
  bool run_until(Time end, const std::function<bool()>& is_over);
  void step(Time end);
  void watch_loops();
  void fault();
  Fault chosen_fault();
  void next_fault();
  void misfortune(Wire& wire);
  void drop_held();
  void hold_up_a_loop();
  void check_stores(StorageHost& host);
  void check_store(StorageHost& host, SharedFile& file, uint32_t stripe);
  void calm_down();
  void settle();

  Clockwork clockwork_;
  const Mutant mutant_;
  std::unique_ptr<Tampering> tampering_;
  Network network_;
  std::vector<std::unique_ptr<StorageHost>> hosts_;
  std::unique_ptr<Metaserver> metaserver_;
  std::vector<std::unique_ptr<SharedFile>> files_;
  std::unique_ptr<Mount> mount_;
  std::unique_ptr<Programs> programs_;
  Loops loops_;
  Duration faults_every_{};
  uint32_t misfortunes_one_in_ = 0;  // frames
  std::vector<uint32_t> fault_weights_;
};

}  // namespace braidfs::world
