#include "storage_host.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace braidfs::world {

namespace {

constexpr size_t kEventsMax = 64;
constexpr Duration kLease = seconds(10);
constexpr Duration kRenewal = seconds(2);
constexpr Duration kBackground = milliseconds(500);
constexpr Duration kBoot = seconds(4);
constexpr Duration kBeforeSessions = milliseconds(100);
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
  clockwork_.agenda.after(clockwork_.chance.up_to(kBeforeSessions), [this, life] {
    if (life == life_ && server_) server_->sessions(sessions_);
  });
  renew_lease(life);
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

void StorageHost::renew_lease(uint64_t life) {
  if (life != life_ || !server_) return;
  if (VirtualTime::now() >= cut_off_until_)
    server_->serve_until(Clock::since_boot_ns() + std::chrono::nanoseconds(kLease).count());
  clockwork_.agenda.after(kRenewal, [this, life] { renew_lease(life); });
}

void StorageHost::background(uint64_t life) {
  if (life != life_ || !server_) return;
  for (size_t index = 0; index < disks_.size(); ++index) {
    store::ChunkStore& store = server_->store(index);
    (void)(clockwork_.chance.one_in(kCheckpointOneIn) ? store.checkpoint()
                                                      : store.background_round());
  }
  look_after();
  clockwork_.agenda.after(kBackground, [this, life] { background(life); });
}

void StorageHost::cut_off(Duration time) {
  cut_off_until_ = VirtualTime::now() + time;
  clockwork_.trace.note("host %u is cut off from the metaserver", number());
}

void StorageHost::live(std::vector<uint64_t> sessions) {
  sessions_ = std::move(sessions);
  if (server_) server_->sessions(sessions_);
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
  clockwork_.agenda.after(work_time(), [this, number] {
    const auto found = tasks_.extract(number);
    if (found.empty()) return;
    found.mapped()();
    look_after();
  });
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
    ++power_cuts_;
  }
  restart_later();
}

void StorageHost::restart_later() {
  const Duration least = lost_power_ ? milliseconds(500) : milliseconds(20);
  const Duration most = clockwork_.calm ? milliseconds(500) : kBoot;
  clockwork_.agenda.after(least + clockwork_.chance.up_to(most), [this] { start(); });
}

}  // namespace braidfs::world
