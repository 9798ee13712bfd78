// A world: clients, storage servers and a network, the real programs in one thread and in a time of
// their own. One seed decides everything: what programs do, who goes on, how long messages and
// workers take, what breaks. In a third of the worlds files have one replica, and there is mostly
// one client; in the others they have two or three (docs/decisions/0063-mirrors.md).
//
// What must hold: see truth.h and judge.h, and that everything is answered when faults have ended.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "clockwork.h"
#include "judge.h"
#include "loops.h"
#include "metaserver.h"
#include "mount.h"
#include "mutants.h"
#include "network.h"
#include "programs.h"
#include "repair.h"
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
    kHostStands,
    kClientEnds,
    kClientStands,
    kClientIsCutOff,
    kCount
  };
  // A client, and what its programs do.
  struct Client {
    std::unique_ptr<Mount> mount;
    std::unique_ptr<Programs> programs;
  };

  void build_hosts();
  void build_metaserver();
  void build_files();
  void choose_faults();
  client::CoreSettings core_settings();
  void start_client(size_t place);
  void end_client(size_t place, bool loses_power);
  void fault_of_client(Fault fault);
  std::string under_way() const;
  uint64_t calls() const;
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
  void wait_for(const char* what, const std::function<bool()>& is_over);
  void wait_for_programs(const char* what);
  void calm_down();
  void settle();

  Clockwork clockwork_;
  const Mutant mutant_;
  std::unique_ptr<Tampering> tampering_;
  Network network_;
  std::vector<std::unique_ptr<StorageHost>> hosts_;
  std::unique_ptr<Metaserver> metaserver_;
  std::vector<std::unique_ptr<SharedFile>> files_;
  std::unique_ptr<Judge> judge_;
  std::unique_ptr<Repair> repair_;
  const bool is_mirrored_;
  std::vector<Client> clients_;
  std::vector<Client> former_;  // that have ended
  uint64_t last_value_ = 0;     // that a program has written
  KeyBytes key_{};
  Loops loops_;
  Duration faults_every_{};
  uint32_t misfortunes_one_in_ = 0;  // frames
  std::vector<uint32_t> fault_weights_;
};

}  // namespace braidfs::world
