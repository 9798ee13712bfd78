#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/context.h"
#include "client/pieces.h"

namespace braidfs::world {

namespace {

constexpr uint64_t kSession = 0xfeed0001;
constexpr uint32_t kFirstTarget = 100;
constexpr uint32_t kChunkSize = 64u << 10;
constexpr uint32_t kCallsMax = 250;
constexpr Duration kFaultsLast = seconds(20);
constexpr Duration kPatience =
    seconds(300);  // longer than anything may take once faults have ended
constexpr Duration kMisfortuneSoon = microseconds(700);
constexpr Duration kStep = microseconds(1);

}  // namespace

World::World(uint64_t seed, Mutant mutant, bool prints)
    : clockwork_(seed, prints),
      mutant_(mutant),
      tampering_(tampering_of(mutant, clockwork_, metaserver_)),
      network_(clockwork_) {
  build_hosts();
  build_client();
  const std::array<Duration, 3> kFaultsEvery{milliseconds(100), milliseconds(800), seconds(4)};
  faults_every_ = kFaultsEvery[clockwork_.chance.pick(kFaultsEvery.size())];
  constexpr std::array<uint32_t, 4> kWeights{0, 1, 4, 16};
  for (size_t fault = 0; fault < static_cast<size_t>(Fault::kCount); ++fault)
    fault_weights_.push_back(kWeights[clockwork_.chance.pick(kWeights.size())]);
  ++fault_weights_[static_cast<size_t>(Fault::kThread)];
  constexpr std::array<uint32_t, 3> kMisfortunesOneIn{0, 60, 300};
  misfortunes_one_in_ = kMisfortunesOneIn[clockwork_.chance.pick(kMisfortunesOneIn.size())];
  network_.at_frame = [this](Wire& wire) { misfortune(wire); };
}

World::~World() {
  clockwork_.agenda.clear();
  mount_.reset();
  clockwork_.agenda.clear();
}

void World::build_hosts() {
  Chance& chance = clockwork_.chance;
  KeyBytes key;
  key.fill(std::byte{0x5a});
  uint32_t target = kFirstTarget;
  for (uint32_t number = 0, count = 1 + chance.pick(3); number < count; ++number) {
    StorageSettings settings{.number = number,
                             .lanes = 1 + chance.pick(2),
                             .misses_one_in = chance.one_in(3) ? 2u : 8u,
                             .key = key};
    settings.targets.push_back(target++);
    if (chance.one_in(3)) settings.targets.push_back(target++);
    hosts_.push_back(std::make_unique<StorageHost>(clockwork_, network_, settings, chance.next()));
    StorageHost& host = *hosts_.back();
    host.keeps_boot_id = mutant_ == Mutant::kPowerLossUnnoticed;
    host.syncs_nothing = mutant_ == Mutant::kDiskLies;
    host.live({kSession});
    host.recovered = [this](StorageHost& one) { check_stores(one); };
  }
  metaserver_ = std::make_unique<Metaserver>(clockwork_, network_, hosts_, key, tampering_.get());
  for (uint64_t ino = 7, end = ino + 1 + chance.pick(2); ino < end; ++ino) {
    std::vector<uint32_t> targets;
    for (uint32_t one = kFirstTarget; one < target; ++one) targets.push_back(one);
    const size_t width = 1 + chance.pick(static_cast<uint32_t>(targets.size()));
    std::rotate(targets.begin(), targets.begin() + chance.pick(targets.size()), targets.end());
    targets.resize(width);
    metaserver_->create(ino, targets, kChunkSize);
    const uint32_t units = (1 + chance.pick(3)) * kChunkSize / Truth::kUnit;
    files_.push_back(std::make_unique<SharedFile>(
        SharedFile{.ino = ino, .chunk_units = kChunkSize / Truth::kUnit, .truth = Truth(units)}));
  }
  for (const auto& host : hosts_) host->start();
}

void World::build_client() {
  Chance& chance = clockwork_.chance;
  constexpr std::array<uint32_t, 3> kSyncAfter{5, 300, 5000};
  MountSettings settings{.session = kSession,
                         .names_former = mutant_ != Mutant::kFormerUnnamed,
                         .tampering = tampering_.get()};
  settings.core.lane_count = 1 + chance.pick(3);
  settings.core.timeout_ms = 3'600'000;
  settings.core.silence_ms_max = chance.one_in(2) ? 2'000 : 10'000;
  settings.core.gather_ms = chance.pick(2);
  settings.core.sync_after_ms = kSyncAfter[chance.pick(kSyncAfter.size())];
  settings.core.seed = chance.next() | 1;
  if (chance.one_in(4)) {  // writers wait for memory
    settings.core.memory.dirty_bytes_max = 256u << 10;
    settings.core.dirty_bytes_per_inode_max = 64u << 10;
  }
  mount_ = std::make_unique<Mount>(clockwork_, network_, *metaserver_, hosts_, settings);
  programs_ = std::make_unique<Programs>(clockwork_, *mount_, files_, 1 + chance.pick(4));
}

std::string World::run() {
  try {
    programs_->start();
    next_fault();
    (void)run_until(VirtualTime::now() + kFaultsLast,
                    [this] { return programs_->calls() > kCallsMax; });
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
  for (uint32_t lane = 0; lane < mount_->lane_count(); ++lane)
    loops.push_back({&mount_->core().loop(lane), "c" + std::to_string(lane), nullptr});
  for (const auto& host : hosts_) {
    if (!host->is_up()) continue;
    for (size_t lane = 0; lane < host->server()->lane_count(); ++lane) {
      loops.push_back({&host->server()->loop(lane),
                       std::to_string(host->number()) + "." + std::to_string(lane), host.get()});
    }
  }
  loops_.take(std::move(loops));
}

void World::step(Time end) {
  mount_->take_events();
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
  switch (chosen_fault()) {
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
      return host.cut_off(chance.up_to(seconds(14)));
    case Fault::kSlowMetaserver:
      return mount_->slow_metaserver(chance.up_to(seconds(3)));
    case Fault::kView:
      return mount_->renew_view(files_[chance.pick(static_cast<uint32_t>(files_.size()))]->ino);
    case Fault::kBlackout:
      for (const auto& one : hosts_) one->lose_power();
      return;
    case Fault::kThread:
      return hold_up_a_loop();
    case Fault::kCount:
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
  for (const auto& inode : mount_->core().context().inodes().all()) {
    client::Actions actions;
    const std::scoped_lock lock(inode->mu());
    inode->pieces().drop_all_held(actions);
  }
}

// ---- what must hold ----

// What is safe is there, whatever the host has lost. Nobody has sent anything again yet.
void World::check_stores(StorageHost& host) {
  for (const auto& file : files_) {
    const auto& targets = metaserver_->file(file->ino).targets;
    for (uint32_t stripe = 0; stripe < targets.size(); ++stripe) {
      if (std::count(host.targets().begin(), host.targets().end(), targets[stripe]) != 0)
        check_store(host, *file, stripe);
    }
  }
}

void World::check_store(StorageHost& host, SharedFile& file, uint32_t stripe) {
  const FileRecord& record = metaserver_->file(file.ino);
  store::ChunkStore& store = host.store_of(record.targets[stripe]);
  const auto width = static_cast<uint32_t>(record.targets.size());
  for (uint32_t chunk = stripe; chunk * file.chunk_units < file.truth.count(); chunk += width) {
    std::vector<std::byte> bytes(kChunkSize);
    std::vector<uint64_t> sums(kChunkSize / limits::kBlockSize);
    const auto result = store.read({.object = {record.file_id, stripe},
                                    .offset = uint64_t{chunk / width} * kChunkSize,
                                    .length = kChunkSize,
                                    .buffer = bytes},
                                   sums);
    if (result.status != Status::kOk && result.status != Status::kNoObject) {
      if (result.status == Status::kEio) return;  // the disk dies just now
      throw BrokenPromise("a store cannot be read: status " +
                          std::to_string(static_cast<int>(result.status)));
    }
    clockwork_.trace.note("object %llu.%u chunk %u: status %u, %u bytes",
                          static_cast<unsigned long long>(record.file_id), stripe, chunk,
                          static_cast<uint32_t>(result.status), result.length);
    bytes.resize(result.status == Status::kOk ? result.length : 0);
    const std::string wrong = file.truth.check(file.truth.safe(), chunk * file.chunk_units,
                                               values_of(std::move(bytes), file.chunk_units));
    if (!wrong.empty())
      throw BrokenPromise("file " + std::to_string(file.ino) + " after a start of host " +
                          std::to_string(host.number()) + ": " + wrong);
  }
}

void World::calm_down() {
  clockwork_.trace.note("faults end");
  clockwork_.calm = true;
  programs_->end();
  const Time end = VirtualTime::now() + kPatience;
  const auto is_over = [this] {
    return programs_->under_way().empty() && mount_->unanswered() == 0;
  };
  if (!run_until(end, is_over)) throw BrokenPromise("it hangs: " + programs_->under_way());
}

// Everything is answered. One more fsync, and no loss of power takes anything.
void World::settle() {
  calm_down();
  programs_->sync_all();
  const auto is_synced = [this] { return programs_->under_way().empty(); };
  if (!run_until(VirtualTime::now() + kPatience, is_synced))
    throw BrokenPromise("the last fsync hangs");
  for (const auto& file : files_) {
    if (metaserver_->file(file->ino).size != file->size && programs_->opens(*file))
      throw BrokenPromise("the size of file " + std::to_string(file->ino) + " is " +
                          std::to_string(metaserver_->file(file->ino).size) + " and not " +
                          std::to_string(file->size));
  }
  for (const auto& host : hosts_) host->lose_power();
  const auto are_up = [this] {
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const auto& host) { return host->is_up(); });
  };
  if (!run_until(VirtualTime::now() + kPatience, are_up)) throw BrokenPromise("a host stays down");
  programs_->read_all();
  if (!run_until(VirtualTime::now() + kPatience, is_synced))
    throw BrokenPromise("the last read hangs");
}

}  // namespace braidfs::world
