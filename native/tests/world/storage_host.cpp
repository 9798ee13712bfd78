#include "storage_host.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace braidfs::world {

namespace {

constexpr size_t kEventsMax = 64;
constexpr Duration kLease = seconds(10);
constexpr Duration kRenewal = seconds(1);
constexpr Duration kBeatPatience = seconds(3);
constexpr Duration kUsualMessage = milliseconds(2);
constexpr Duration kLateMessage = seconds(4);
constexpr uint32_t kLateOneIn = 60;
constexpr Duration kBackground = milliseconds(500);
constexpr Duration kBoot = seconds(4);
constexpr uint32_t kDiesInRecoveryOneIn = 10;
constexpr uint32_t kCheckpointOneIn = 6;  // rounds of background work

store::Uuid uuid_of(uint32_t number) {
  store::Uuid uuid{};
  uuid.front() = std::byte{1};
  uuid.back() = static_cast<std::byte>(number);
  return uuid;
}

}  // namespace

StorageHost::StorageHost(Clockwork& clockwork, Network& network, const StorageSettings& settings,
                         uint64_t seed)
    : clockwork_(clockwork), network_(network), settings_(settings) {
  for (const uint32_t target : settings_.targets) {
    disks_.push_back(std::make_unique<store::test::Host>(seed + target));
    disks_.back()->misses_one_in = settings_.misses_one_in;
  }
}

StorageHost::~StorageHost() {
  if (server_) stop();
}

// Whatever it would still do to its disks does not happen.
void StorageHost::stop() {
  for (const auto& disk : disks_) disk->die();
  run_tasks();
  server_->stop(0);
  server_.reset();
  ++life_;
}

void StorageHost::run_tasks() {
  for (auto& [number, task] : std::exchange(tasks_, {})) task();
}

void StorageHost::start() {
  if (server_) return;
  server_ = std::make_unique<server::ChunkServer>(
      server::ServerConfig{.lane_count = settings_.lanes,
                           .target_count = settings_.targets.size(),
                           .io = server::IoEngine::kSyscall,
                           .threads = false});
  if (!open_targets()) return end(dies_by_power_);
  clockwork_.trace.note("host %u has started", number());
  if (recovered) recovered(*this);
  server_->capability_key(settings_.key);
  server_->start();
  const uint64_t life = ++life_;
  is_registered_ = false;
  beat(life);
  background(life);
}

// False: a disk has died meanwhile.
bool StorageHost::open_targets() {
  const bool is_new_boot = std::exchange(lost_power_, false) && !keeps_boot_id;
  std::vector<std::shared_ptr<store::Device>> devices;
  for (const auto& disk : disks_) {
    devices.push_back(disk->boot(is_new_boot));
    disk->ignores_syncs = syncs_nothing && is_created_;
  }
  if (!clockwork_.calm && is_created_ && clockwork_.chance.one_in(kDiesInRecoveryOneIn))
    die_in(clockwork_.chance.pick(60), clockwork_.chance.one_in(2));
  for (size_t index = 0; index < disks_.size(); ++index) {
    const uint32_t target = settings_.targets[index];
    const auto opened = server_->target_open(
        devices[index], {.path = "disk", .uuid = uuid_of(target), .create = !is_created_});
    const bool is_open =
        opened.status == Status::kOk && server_->target_assign(opened.index, target) == Status::kOk;
    if (!is_open && !disks_[index]->dead())
      throw std::logic_error("a target cannot be opened: " + opened.message);
    if (!is_open) return false;
  }
  is_created_ = true;
  return true;
}

// ---- the metaserver ----

Duration StorageHost::message_time() {
  Chance& chance = clockwork_.chance;
  const bool is_late = !clockwork_.calm && chance.one_in(kLateOneIn);
  return chance.up_to(is_late ? kLateMessage : kUsualMessage);
}

bool StorageHost::has_lease() const { return Clock::since_boot_ns() < leased_until_ns_; }

// Registers, and keeps its lease, which counts from when it asked.
void StorageHost::beat(uint64_t life) {
  if (life != life_ || !server_) return;
  if (is_standing()) return clockwork_.agenda.at(standing_until_, [this, life] { beat(life); });
  const uint64_t number = ++beat_number_;
  const int64_t sent_ns = Clock::since_boot_ns();
  clockwork_.agenda.after(message_time(), [=, this] { beat_arrived(life, number, sent_ns); });
  clockwork_.agenda.after(kBeatPatience, [=, this] {
    if (life != life_ || number != beat_number_) return;
    is_registered_ = false;
    beat(life);
  });
}

void StorageHost::beat_arrived(uint64_t life, uint64_t number, int64_t sent_ns) {
  if (life != life_ || !server_ || (is_cut_off() && cut_off_ways_ != Ways::kFrom)) return;
  if (is_registered_) {
    const auto sessions = beats(this->number(), life);
    return answer_later(life, number, [=, this] {
      is_registered_ = sessions && has_lease();
      if (is_registered_) answered(sent_ns, *sessions);
    });
  }
  Incarnations incarnations;
  for (const uint32_t target : targets()) incarnations[target] = store_of(target).incarnation();
  const Registered registered = registers(this->number(), life, incarnations);
  answer_later(life, number, [=, this] {
    for (const auto& [target, object] : registered.dropped)
      (void)server_->drop_names(target, std::span(&object, 1));
    is_registered_ = true;
    answered(sent_ns, registered.sessions);
  });
}

void StorageHost::answer_later(uint64_t life, uint64_t number, std::function<void()> take) {
  clockwork_.agenda.after(message_time(), [=, this] {
    if (life != life_ || !server_ || (is_cut_off() && cut_off_ways_ != Ways::kTo)) return;
    if (is_standing()) {
      return clockwork_.agenda.at(standing_until_, [=, this] { answer_later(life, number, take); });
    }
    if (number != beat_number_) return;  // it has asked again
    ++beat_number_;
    take();
    clockwork_.agenda.after(is_registered_ ? kRenewal : kUsualMessage,
                            [this, life] { beat(life); });
  });
}

void StorageHost::answered(int64_t sent_ns, const std::vector<uint64_t>& sessions) {
  leased_until_ns_ = sent_ns + std::chrono::nanoseconds(kLease).count();
  server_->serve_until(leased_until_ns_);
  server_->sessions(sessions);
}

void StorageHost::background(uint64_t life) {
  if (life != life_ || !server_) return;
  if (is_standing())
    return clockwork_.agenda.at(standing_until_, [this, life] { background(life); });
  for (size_t index = 0; index < disks_.size(); ++index) {
    store::ChunkStore& store = server_->store(index);
    (void)(clockwork_.chance.one_in(kCheckpointOneIn) ? store.checkpoint()
                                                      : store.background_round());
  }
  look_after();
  clockwork_.agenda.after(kBackground, [this, life] { background(life); });
}

void StorageHost::cut_off(Duration time, Ways ways) {
  cut_off_until_ = VirtualTime::now() + time;
  cut_off_ways_ = ways;
  clockwork_.trace.note("host %u is cut off from the metaserver in way %u", number(),
                        static_cast<uint32_t>(ways));
}

store::ChunkStore& StorageHost::store_of(uint32_t target) {
  for (size_t index = 0; index < settings_.targets.size(); ++index) {
    if (settings_.targets[index] == target) return server_->store(index);
  }
  throw std::logic_error("no such target");
}

// ---- its workers ----

Duration StorageHost::work_time() {
  Chance& chance = clockwork_.chance;
  const uint32_t kind = clockwork_.calm ? 1000 : chance.pick(1000);
  if (kind < 8) return chance.up_to(seconds(15));
  if (kind < 40) return chance.up_to(seconds(2));
  return chance.up_to(microseconds(300));
}

void StorageHost::run_later(std::function<void()> task) {
  const uint64_t number = ++task_number_;
  tasks_.emplace(number, std::move(task));
  clockwork_.agenda.after(work_time(), [this, number] { run_task(number); });
}

void StorageHost::run_task(uint64_t number) {
  if (is_standing())
    return clockwork_.agenda.at(standing_until_, [this, number] { run_task(number); });
  const auto found = tasks_.extract(number);
  if (found.empty()) return;
  found.mapped()();
  look_after();
}

void StorageHost::note_logs() {
  for (const server::Event& event : server_->events().reap(kEventsMax)) {
    if (event.kind == EventKind::kCorrupt && !has_dead_disk())
      throw std::logic_error("a block is corrupt");
    if (event.kind == EventKind::kLog)
      clockwork_.trace.note("host %u: %s", number(), event.payload.c_str());
  }
}

void StorageHost::look_after() {
  if (server_) note_logs();
  while (server_ != nullptr) {
    std::function<void()> task = server_->take_task();
    if (!task) break;
    run_later(std::move(task));
  }
  if (server_ && has_dead_disk()) end(dies_by_power_);
}

bool StorageHost::has_dead_disk() const {
  return std::any_of(disks_.begin(), disks_.end(), [](const auto& disk) { return disk->dead(); });
}

// ---- its ends ----

void StorageHost::kill() {
  if (server_) end(false);
}

void StorageHost::lose_power() {
  if (server_) end(true);
}

void StorageHost::restart() {
  if (!server_) return;
  clockwork_.trace.note("host %u is stopped", number());
  network_.host_is_gone(number(), milliseconds(5));
  run_tasks();
  server_->stop(0);
  note_logs();
  stop();
  restart_later();
}

void StorageHost::die_in(uint32_t changes, bool loses_power) {
  dies_by_power_ = loses_power;
  disks_[clockwork_.chance.pick(static_cast<uint32_t>(disks_.size()))]->die_after(changes);
}

void StorageHost::end(bool loses_power) {
  note_logs();
  clockwork_.trace.note("host %u %s", number(), loses_power ? "loses power" : "is killed");
  network_.host_is_gone(number(), loses_power ? kBoot : milliseconds(5));
  stop();
  if (loses_power) {
    for (const auto& disk : disks_) disk->cut();
    lost_power_ = true;
    if (powerless) powerless(*this);
  }
  restart_later();
}

void StorageHost::restart_later() {
  const Duration least = lost_power_ ? milliseconds(500) : milliseconds(20);
  const Duration most = clockwork_.calm ? milliseconds(500) : kBoot;
  clockwork_.agenda.after(least + clockwork_.chance.up_to(most), [this] { start(); });
}

}  // namespace braidfs::world
