#include "world.h"

#include <algorithm>
#include <array>

#include "client/context.h"
#include "client/pieces.h"

namespace braidfs::world {

namespace {

constexpr uint32_t kFirstTarget = 100;
constexpr uint32_t kChunkSize = 64u << 10;
constexpr uint32_t kCallsMax = 250;
constexpr Duration kFaultsLast = seconds(20);
constexpr Duration kFaultsLastMirrored = seconds(40);
constexpr Duration kPatience =
    seconds(300);  // longer than anything may take once faults have ended
constexpr Duration kMisfortuneSoon = microseconds(700);
constexpr Duration kClientComes = seconds(4);
constexpr Duration kStep = microseconds(1);

}  // namespace

World::World(uint64_t seed, Mutant mutant, bool prints)
    : clockwork_(seed, prints),
      mutant_(mutant),
      tampering_(tampering_of(mutant, clockwork_, metaserver_)),
      network_(clockwork_),
      is_mirrored_(seed % 3 != 0) {
  build_hosts();
  build_metaserver();
  build_files();
  Chance& chance = clockwork_.chance;
  clients_.resize(chance.one_in(is_mirrored_ ? 3 : 4) == is_mirrored_ ? 1 : 2);
  judge_->recalls_leases = is_mirrored_ || clients_.size() > 1;
  choose_faults();
  network_.at_frame = [this](Wire& wire, Side from, const Frame& frame) {
    judge_->frame(wire, from, frame);
    misfortune(wire);
  };
}

World::~World() {
  clockwork_.agenda.clear();
  clients_.clear();
  former_.clear();
  clockwork_.agenda.clear();
}

void World::build_hosts() {
  Chance& chance = clockwork_.chance;
  key_.fill(std::byte{0x5a});
  uint32_t target = kFirstTarget;
  const uint32_t count = is_mirrored_ ? 3 + chance.pick(2) : 1 + chance.pick(3);
  for (uint32_t number = 0; number < count; ++number) {
    StorageSettings settings{.number = number,
                             .lanes = 1 + chance.pick(2),
                             .misses_one_in = chance.one_in(3) ? 2u : 8u,
                             .key = key_};
    settings.targets.push_back(target++);
    if (chance.one_in(3)) settings.targets.push_back(target++);
    hosts_.push_back(std::make_unique<StorageHost>(clockwork_, network_, settings, chance.next()));
    StorageHost& host = *hosts_.back();
    host.keeps_boot_id = mutant_ == Mutant::kPowerLossUnnoticed;
    host.syncs_nothing = mutant_ == Mutant::kDiskLies;
    host.recovered = [this](StorageHost& one) { judge_->recovered(one); };
    host.powerless = [this](StorageHost& one) { judge_->lost_power(one); };
    host.registers = [this](uint32_t of, uint64_t life, const StorageHost::Incarnations& known) {
      return metaserver_->register_host(of, life, known);
    };
    host.beats = [this](uint32_t of, uint64_t life) { return metaserver_->beat(of, life); };
  }
}

void World::build_metaserver() {
  metaserver_ =
      std::make_unique<Metaserver>(clockwork_, network_, hosts_, key_, mutant_, tampering_.get());
  judge_ = std::make_unique<Judge>(clockwork_, *metaserver_, hosts_, files_);
  judge_->evicted = [this](uint64_t session) {
    for (Client& client : clients_) {
      if (client.mount && client.mount->session() == session) client.programs->die();
    }
  };
  metaserver_->watcher = judge_.get();
  metaserver_->recall = [this](uint64_t session, uint64_t ino, Metaserver::Held what) {
    for (Client& client : clients_) {
      Mount* const mount = client.mount.get();
      if (mount == nullptr || mount->session() != session) continue;
      mount->later(clockwork_.chance.up_to(milliseconds(3)),
                   [mount, ino, what] { mount->recalled(ino, what); });
    }
  };
  repair_ = std::make_unique<Repair>(clockwork_, *metaserver_, network_, hosts_, mutant_);
}

void World::build_files() {
  Chance& chance = clockwork_.chance;
  for (uint64_t ino = 7, end = ino + 1 + chance.pick(2); ino < end; ++ino) {
    const uint32_t replicas = is_mirrored_ ? (chance.one_in(4) ? 3 : 2) : 1;
    metaserver_->create(ino, 1 + chance.pick(is_mirrored_ ? 2 : 3), replicas, kChunkSize);
    const uint32_t units = (1 + chance.pick(3)) * kChunkSize / Truth::kUnit;
    files_.push_back(std::make_unique<SharedFile>(
        SharedFile{.ino = ino, .chunk_units = kChunkSize / Truth::kUnit, .truth = Truth(units)}));
  }
}

void World::choose_faults() {
  Chance& chance = clockwork_.chance;
  const std::array<Duration, 3> kFaultsEvery{milliseconds(100), milliseconds(800), seconds(4)};
  faults_every_ = kFaultsEvery[chance.pick(kFaultsEvery.size())];
  constexpr std::array<uint32_t, 4> kWeights{0, 1, 4, 16};
  for (size_t fault = 0; fault < static_cast<size_t>(Fault::kCount); ++fault)
    fault_weights_.push_back(kWeights[chance.pick(kWeights.size())]);
  ++fault_weights_[static_cast<size_t>(Fault::kThread)];
  constexpr std::array<uint32_t, 3> kMisfortunesOneIn{0, 60, 300};
  misfortunes_one_in_ = kMisfortunesOneIn[chance.pick(kMisfortunesOneIn.size())];
}

client::CoreSettings World::core_settings() {
  Chance& chance = clockwork_.chance;
  constexpr std::array<uint32_t, 3> kSyncAfter{5, 300, 5000};
  client::CoreSettings core;
  core.lane_count = 1 + chance.pick(3);
  core.timeout_ms = 3'600'000;
  core.silence_ms_max = chance.one_in(2) ? 2'000 : 10'000;
  core.gather_ms = chance.pick(2);
  core.sync_after_ms = kSyncAfter[chance.pick(kSyncAfter.size())];
  core.unanswered_ms_max = chance.one_in(2) ? 8'000 : 30'000;
  core.read_unanswered_ms_max = core.unanswered_ms_max / 10;
  core.seed = chance.next() | 1;
  if (chance.one_in(4)) {  // writers wait for memory
    core.memory.dirty_bytes_max = 256u << 10;
    core.dirty_bytes_per_inode_max = 64u << 10;
  }
  return core;
}

// ---- clients ----

void World::start_client(size_t place) {
  Client& client = clients_[place];
  if (client.mount) former_.push_back(std::move(client));
  const MountSettings settings{.core = core_settings(),
                               .names_former = mutant_ != Mutant::kFormerUnnamed,
                               .tampering = tampering_.get()};
  client.mount = std::make_unique<Mount>(clockwork_, network_, *metaserver_, hosts_, settings);
  client.mount->lost = [this, place, session = client.mount->session()] {
    clockwork_.agenda.after({}, [this, place, session] {
      if (clients_[place].mount->session() == session) end_client(place, false);
    });
  };
  client.programs =
      std::make_unique<Programs>(clockwork_, *client.mount, *judge_, files_, last_value_,
                                 1 + clockwork_.chance.pick(clients_.size() == 1 ? 4 : 2));
  if (clockwork_.calm) return client.programs->end();
  client.programs->start();
}

// Another one comes after a while.
void World::end_client(size_t place, bool loses_power) {
  Client& client = clients_[place];
  if (!client.mount->is_alive()) return;
  client.programs->die();
  client.mount->kill(loses_power);
  const Duration most = clockwork_.calm ? milliseconds(10) : kClientComes;
  clockwork_.agenda.after(clockwork_.chance.up_to(most), [this, place] { start_client(place); });
}

std::string World::under_way() const {
  std::string all;
  for (const Client& client : clients_) {
    if (!client.programs->are_dead()) all += client.programs->under_way();
    if (!client.mount->is_alive() || client.programs->are_dead()) all += "a client is to come; ";
  }
  return all;
}

uint64_t World::calls() const {
  uint64_t calls = 0;
  for (const Client& client : clients_) calls += client.programs->calls();
  for (const Client& client : former_) calls += client.programs->calls();
  return calls;
}

std::string World::run() {
  try {
    for (const auto& host : hosts_) host->start();
    metaserver_->start();
    repair_->start();
    for (size_t place = 0; place < clients_.size(); ++place) start_client(place);
    next_fault();
    (void)run_until(VirtualTime::now() + (is_mirrored_ ? kFaultsLastMirrored : kFaultsLast),
                    [this] { return calls() > kCallsMax; });
    settle();
  } catch (const std::logic_error& error) {
    return error.what();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

// ---- who goes on ----

bool World::run_until(Time end, const std::function<bool()>& is_over) {
  while (!is_over()) {
    if (VirtualTime::now() >= end) return false;
    step(end);
  }
  return true;
}

void World::watch_loops() {
  std::vector<Turning> loops;
  for (const Client& client : clients_) {
    if (!client.mount->is_alive()) continue;
    const std::string name = "c" + std::to_string(client.mount->session()) + ".";
    for (uint32_t lane = 0; lane < client.mount->lane_count(); ++lane)
      loops.push_back({&client.mount->core().loop(lane), name + std::to_string(lane), nullptr,
                       client.mount->standing_until()});
  }
  for (const auto& host : hosts_) {
    if (!host->is_up()) continue;
    for (size_t lane = 0; lane < host->server()->lane_count(); ++lane) {
      loops.push_back({&host->server()->loop(lane),
                       std::to_string(host->number()) + "." + std::to_string(lane), host.get(),
                       host->standing_until()});
    }
  }
  loops_.take(std::move(loops));
}

void World::step(Time end) {
  for (const Client& client : clients_) client.mount->take_events();
  watch_loops();
  loops_.look(network_);
  Agenda& agenda = clockwork_.agenda;
  const Time now = VirtualTime::now();
  const auto first = agenda.first();
  const auto& ready = loops_.ready();
  const bool is_due = first && *first <= now;
  if (ready.empty() && !is_due) {
    Time next = first ? std::min(*first, end) : end;
    if (const auto loop = loops_.next()) next = std::min(next, *loop);
    return VirtualTime::advance_to(std::max(next, now + kStep));
  }
  const uint32_t chosen = clockwork_.chance.pick(static_cast<uint32_t>(ready.size()) + is_due);
  if (chosen == ready.size()) {
    agenda.run_first();
  } else {
    const Turning& turning = loops_.at(ready[chosen]);
    turning.loop->turn(0);
    if (turning.host != nullptr) turning.host->look_after();
  }
  if (mutant_ == Mutant::kHeldDropped && clockwork_.chance.one_in(50)) drop_held();
  VirtualTime::advance_to(VirtualTime::now() + kStep);
}

// ---- what breaks ----

void World::next_fault() {
  clockwork_.agenda.after(clockwork_.chance.up_to(faults_every_), [this] {
    if (clockwork_.calm) return;
    fault();
    next_fault();
  });
}

void World::fault() {
  Chance& chance = clockwork_.chance;
  StorageHost& host = *hosts_[chance.pick(static_cast<uint32_t>(hosts_.size()))];
  const Fault chosen = chosen_fault();
  switch (chosen) {
    case Fault::kConnection:
      return network_.break_something();
    case Fault::kKill:
      return host.kill();
    case Fault::kRestart:
      return host.restart();
    case Fault::kPowerLoss:
      return host.lose_power();
    case Fault::kDeathWithin:
      return host.die_in(chance.pick(80), chance.one_in(2));
    case Fault::kLease:
      return host.cut_off(chance.up_to(seconds(14)),
                          static_cast<StorageHost::Ways>(chance.pick(3)));
    case Fault::kBlackout:
      for (const auto& one : hosts_) one->lose_power();
      return;
    case Fault::kThread:
      return hold_up_a_loop();
    case Fault::kHostStands:
      return host.stand_still(chance.up_to(seconds(chance.one_in(3) ? 16 : 2)));
    default:
      return fault_of_client(chosen);
  }
}

void World::fault_of_client(Fault fault) {
  Chance& chance = clockwork_.chance;
  const size_t place = chance.pick(static_cast<uint32_t>(clients_.size()));
  Mount& mount = *clients_[place].mount;
  if (!mount.is_alive()) return;
  const bool is_rare = chance.one_in(4);
  switch (fault) {
    case Fault::kSlowMetaserver:
      return mount.slow_metaserver(chance.up_to(seconds(3)));
    case Fault::kView: {
      const auto file = chance.pick(static_cast<uint32_t>(files_.size()));
      return mount.renew_view(files_[file]->ino, chance.up_to(seconds(is_rare ? 5 : 0)));
    }
    case Fault::kClientEnds:
      if (is_rare) end_client(place, chance.one_in(2));
      return;
    case Fault::kClientStands:
      return mount.stand_still(chance.up_to(is_rare ? Duration(seconds(20)) : milliseconds(500)));
    case Fault::kClientIsCutOff:
      return mount.cut_off(chance.up_to(seconds(is_rare ? 16 : 3)));
    default:
      return;
  }
}

// Something happens while a frame is on its way, or has just come.
void World::misfortune(Wire& wire) {
  Chance& chance = clockwork_.chance;
  if (clockwork_.calm || misfortunes_one_in_ == 0 || !chance.one_in(misfortunes_one_in_)) return;
  const uint32_t kind = chance.pick(8);
  StorageHost& host = *hosts_[wire.host()];
  clockwork_.agenda.after(chance.up_to(kMisfortuneSoon),
                          [this, kind, &host, at = wire.shared_from_this()] {
                            if (kind < 3) return host.lose_power();
                            if (kind < 4) return host.kill();
                            if (kind < 5) return host.die_in(clockwork_.chance.pick(6), true);
                            network_.break_wire(*at);
                          });
}

World::Fault World::chosen_fault() {
  uint32_t sum = 0;
  for (const uint32_t weight : fault_weights_) sum += weight;
  uint32_t chosen = clockwork_.chance.pick(sum);
  uint8_t fault = 0;
  while (chosen >= fault_weights_[fault]) chosen -= fault_weights_[fault++];
  return static_cast<Fault>(fault);
}

void World::hold_up_a_loop() {
  Chance& chance = clockwork_.chance;
  if (loops_.count() == 0) return;
  const Duration most = chance.one_in(10) ? Duration(seconds(4)) : milliseconds(30);
  loops_.hold_up(chance.pick(static_cast<uint32_t>(loops_.count())),
                 VirtualTime::now() + chance.up_to(most));
}

// A client that does not hold what is not synced.
void World::drop_held() {
  for (const Client& client : clients_) {
    if (!client.mount->is_alive()) continue;
    for (const auto& inode : client.mount->core().context().inodes().all()) {
      client::Actions actions;
      const std::scoped_lock lock(inode->mu());
      inode->pieces().drop_all_held(actions);
    }
  }
}

// ---- how it ends ----

void World::wait_for(const char* what, const std::function<bool()>& is_over) {
  if (!run_until(VirtualTime::now() + kPatience, is_over))
    throw BrokenPromise(std::string(what) + " hangs: " + under_way() + metaserver_->is_left());
}

void World::wait_for_programs(const char* what) {
  wait_for(what, [this] {
    return under_way().empty() &&
           std::all_of(clients_.begin(), clients_.end(), [](const Client& client) {
             return client.mount->is_alive() && client.mount->unanswered() == 0;
           });
  });
}

void World::calm_down() {
  clockwork_.trace.note("faults end");
  clockwork_.calm = true;
  for (Client& client : clients_) client.programs->end();
  wait_for_programs("a call");
}

// Everything is answered. One more fsync, and no loss of power takes anything. Files that nobody
// has open any more get all their replicas.
void World::settle() {
  calm_down();
  for (Client& client : clients_) client.programs->sync_all();
  wait_for_programs("the last fsync");
  for (Client& client : clients_) client.programs->close_all();
  wait_for_programs("the last close");
  wait_for("the metaserver", [this] { return metaserver_->is_quiet(); });
  judge_->at_the_end();
  for (const auto& file : files_) {
    if (metaserver_->file(file->ino).size != file->size && file->is_size_known)
      throw BrokenPromise("the size of file " + std::to_string(file->ino) + " is " +
                          std::to_string(metaserver_->file(file->ino).size) + " and not " +
                          std::to_string(file->size));
  }
  for (const auto& host : hosts_) host->lose_power();
  wait_for("a host", [this] {
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const auto& host) { return host->is_up(); });
  });
  for (Client& client : clients_) client.programs->read_all();
  wait_for_programs("the last read");
}

}  // namespace braidfs::world
