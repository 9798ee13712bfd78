#include "world.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace braidfs::client::rig {

namespace {

constexpr uint64_t kCutToken = 1;
constexpr int kStepsToSettle = 60'000;

}  // namespace

World::World(uint64_t seed, Cuts cuts)
    : Stage({.lanes = kLanes,
             .targets = kTargets,
             .seed = seed,
             .interrupted_one_in = 2 + static_cast<uint32_t>(seed % 7)}),
      random_(static_cast<uint32_t>(seed % 2147483646 + 1)),
      cuts_(cuts) {
  if (cuts_ != Cuts::kByLanes) return;
  core().lease_until(Clock::now() + std::chrono::hours(1));
  core().inode_lease(kIno, kLeaseData | kLeaseDataExclusive, 0);
}

std::string World::run() {
  for (uint32_t at = 0; at < kSteps && failure_.empty(); ++at) step();
  settle();
  return failure_;
}

void World::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

// What was interrupted may be so for long: whole turns of others, with all that they bring about.
void World::run_lane() {
  const uint32_t lane = pick(kLanes);
  if (held_up_until_[lane] > steps_) return;
  Stage::run(lane);
  if (is_in_turn(lane) && one_in(6)) held_up_until_[lane] = steps_ + pick(120);
}

void World::step() {
  ++steps_;
  const uint32_t what = pick(100);
  if (what < 44) {
    run_lane();
  } else if (what < 78) {
    serve_one(target(pick(kTargets)));
  } else if (what < 86) {
    python();
    if (one_in(2)) commit();
    if (one_in(2)) go_on_telling();
  } else if (what < 95) {
    start_something();
  } else if (what == 95) {
    schedule().advance(std::chrono::milliseconds(1 + pick(3)));
  } else if (what == 96 && one_in(3)) {
    break_connections(target(pick(kTargets)));
  } else if (what > 96 && losses_ < kLossesMax) {
    ++losses_;
    lose_power(target(pick(kTargets)));
  }
}

// Nothing breaks any more: everything is answered, and one more fsync makes the file what it should
// be.
void World::settle() {
  bool synced = false;
  for (int at = 0; at < kStepsToSettle && failure_.empty(); ++at) {
    if (operations_.empty() && cut_ == Cut::kNone && !is_telling_) {
      const bool done = synced && !sync_failed_;
      if (done && client_size_ != size()) fail("its size is " + std::to_string(size()));
      if (done) return;
      synced = true;
      start_sync();
    }
    Stage::run(pick(kLanes));
    serve_one(target(pick(kTargets)));
    python();
    commit();
    go_on_cutting();
    go_on_telling();
    if (at % 16 == 0) schedule().advance(std::chrono::milliseconds(1));
  }
  if (failure_.empty()) fail("it never ended");
}

// ---- what the kernel asks ----

void World::start_something() {
  const uint32_t what = pick(10);
  if (cut_ != Cut::kNone) go_on_cutting();
  if (wants_cut_) return start_cut();
  if (what < 5)
    return cut_ == Cut::kNone ? start_write() : void();  // the kernel lets one of the two in
  if (what < 7) return start_read();
  if (what < 8 || cuts_ == Cuts::kNone) return start_sync();
  if (what < 9 && cuts_ == Cuts::kByPython) return start_sync();
  start_cut();
}

void World::start_write() {
  const uint32_t chunk = pick(kChunks);
  const uint32_t from = pick(kUnitsOfChunk);
  const uint32_t count = 1 + pick(std::min(kUnitsOfChunk - from, 12u));
  const uint32_t first = chunk * kUnitsOfChunk + from;
  for (uint32_t unit = first; unit < first + count; ++unit) {
    if (units_[unit].busy) return;
  }
  Bytes bytes(size_t{count} * kUnit);
  ++value_;
  for (size_t at = 0; at < bytes.size(); at += sizeof(value_)) {
    std::memcpy(bytes.data() + at, &value_, sizeof(value_));
  }
  for (uint32_t unit = first; unit < first + count; ++unit) {
    units_[unit].busy = true;
    units_[unit].written.push_back(value_);
  }
  constexpr std::array<uint32_t, 4> kFlags{0, 0, O_DIRECT, O_DSYNC};
  operations_.emplace(unique_ += 2,
                      Operation{.kind = Kind::kWrite, .first = first, .count = count});
  write(pick(kLanes), unique_, offset_of(first), std::move(bytes), kFlags[pick(kFlags.size())]);
}

void World::start_read() {
  const uint32_t first = pick(kChunks) * kUnitsOfChunk;
  operations_.emplace(
      unique_ += 2,
      Operation{.kind = Kind::kRead, .first = first, .count = kUnitsOfChunk, .least = answered()});
  read(pick(kLanes), unique_, offset_of(first), kUnitsOfChunk * kUnit);
}

void World::start_sync() {
  operations_.emplace(unique_ += 2,
                      Operation{.kind = Kind::kSync, .count = kUnits, .least = answered()});
  fsync(pick(kLanes), unique_);
}

// A smaller file: what was written is sent first, then the metaserver has the targets cut
// (files.py, setattr).
void World::start_cut() {
  if (cut_ != Cut::kNone) return;
  wants_cut_ = cuts_ == Cuts::kByLanes;
  for (const Unit& unit : units_) {
    if (unit.busy) return;
  }
  wants_cut_ = false;
  cut_at_ = one_in(8) ? 0 : pick(kUnits);
  if (cuts_ == Cuts::kByLanes) return ask_cut();
  cut_ = Cut::kDraining;
  core().drain(kCutToken, kIno, false, false);
}

// What lanes do not do by themselves Python does, and until then they do not.
void World::ask_cut() {
  cut_ = Cut::kAsked;
  for (uint32_t unit = cut_at_; unit < kUnits; ++unit) units_[unit].written.push_back(0);
  core().lane(pick(kLanes)).post([this](Lane& at) {
    fuse::LaneContext context{.index = at.index()};
    if (core().cut(context, {.ino = kIno, .fh = kFh, .size = offset_of(cut_at_), .time_ns = 1}))
      return cut_by_lane();
    core().pause_cuts(kIno, true);
    cut_ = Cut::kDraining;
    core().drain(kCutToken, kIno, false, false);
  });
}

void World::cut_by_lane() {
  cut_ = Cut::kNone;
  client_size_ = offset_of(cut_at_);
  for (uint32_t unit = cut_at_; unit < kUnits; ++unit) {
    units_[unit].answered = units_[unit].cut = units_[unit].written.size() - 1;
  }
}

// As SETATTR does it, with what was there before: a shrink has the targets cut, one to nothing
// other objects.
void World::go_on_telling() {
  if (tellings_.empty()) return;
  const Event& event = tellings_.front();
  const auto size = static_cast<uint64_t>(event.a);
  if (!is_telling_) {
    is_telling_ = true;
    uint64_t reach;
    std::memcpy(&reach, event.payload.data(), sizeof(reach));
    grow_to(reach);
    const bool shrinks = size < this->size();
    targets_cut_ = shrinks && size != 0 ? 0 : kTargets;
    if (shrinks) ++epoch_;
    if (shrinks && size == 0) file_id_ += 1000;
    return;
  }
  if (cut_target(size)) return;
  const bool well = failures_ == 3 || !one_in(10);
  failures_ += well ? 0 : 1;
  cut_done(event, size, epoch_, well);
  is_telling_ = false;
  tellings_.pop_front();
}

bool World::cut_target(uint64_t size) {
  if (targets_cut_ == kTargets) return false;
  const uint32_t stripe = targets_cut_++;
  size_t end = 0;  // of the object
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    if (chunk % kTargets != stripe || uint64_t{chunk} * kChunkSize >= size) continue;
    end = size_t{chunk / kTargets} * kChunkSize +
          static_cast<size_t>(std::min<uint64_t>(kChunkSize, size - uint64_t{chunk} * kChunkSize));
  }
  target(stripe).store.truncate({file_id_, stripe}, end, epoch_);
  return true;
}

void World::commit() {
  const uint64_t before = size();
  if (answer_commit() && size() != before) check_commit();
}

// If the client died now, everybody else would see what is at the targets, until that size.
void World::check_commit() {
  for (uint32_t unit = 0; unit < kUnits && offset_of(unit) + kUnit <= size(); ++unit) {
    const uint32_t stripe = unit / kUnitsOfChunk % kTargets;
    const Operation since{.least = [&] {
      std::vector<size_t> least;
      for (const Unit& one : units_) least.push_back(one.cut);
      return least;
    }()};
    if (!check(since, unit, value_at(target(stripe).store.objects, unit, stripe), "after a commit"))
      return;
  }
}

// What is not committed goes along.
void World::begin_cut() {
  while (commits_waiting() != 0) commit();
  std::optional<Written> taken;
  bool commits = false;
  by_python([&] {
    taken = core().inode_take(kIno);
    commits = core().inode_commits(kIno);
  });
  if (taken) {
    if ((taken->flags & kWrittenCut) != 0) fail("a cut was not told");
    grow_to(taken->size);
  }
  if (commits) return core().drain(kCutToken, kIno, false, true);
  cut_ = Cut::kCutting;
  targets_cut_ = 0;
  ++epoch_;
  for (uint32_t unit = cut_at_; unit < kUnits; ++unit) units_[unit].written.push_back(0);
}

void World::go_on_cutting() {
  if (cut_ != Cut::kCutting) return;
  if (!cut_target(offset_of(cut_at_))) end_cut();
}

void World::end_cut() {
  cut_ = Cut::kNone;
  resize(offset_of(cut_at_), epoch_);
  client_size_ = offset_of(cut_at_);
  for (uint32_t unit = cut_at_; unit < kUnits; ++unit) {
    units_[unit].answered = units_[unit].cut = units_[unit].written.size() - 1;
  }
  if (cuts_ == Cuts::kByLanes) by_python([this] { core().pause_cuts(kIno, false); });
}

// ---- what it is told ----

std::vector<size_t> World::answered() const {
  std::vector<size_t> least;
  for (const Unit& unit : units_) least.push_back(unit.answered);
  return least;
}

bool World::check(const Operation& operation, uint32_t unit, uint64_t value, const char* what) {
  const Values& written = units_[unit].written;
  const auto found = std::find(written.rbegin(), written.rend(), value);
  const auto index = written.rend() - found;  // one behind it
  if (index > static_cast<ptrdiff_t>(operation.least[unit])) return true;
  fail(std::string(what) + ": unit " + std::to_string(unit) + " is of write " +
       std::to_string(value) + " after that of " + std::to_string(written[operation.least[unit]]) +
       " was answered");
  return false;
}

void World::check_durable(const Operation& operation) {
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    const uint32_t stripe = unit / kUnitsOfChunk % kTargets;
    if (!check(operation, unit, value_at(target(stripe).store.durable, unit, stripe),
               "after fsync"))
      return;
  }
}

uint64_t World::value_at(const std::map<FakeStore::Key, Bytes>& objects, uint32_t unit,
                         uint32_t stripe) const {
  const auto found = objects.find({file_id_, stripe});
  const size_t at =
      size_t{unit / kUnitsOfChunk / kTargets} * kChunkSize + size_t{unit % kUnitsOfChunk} * kUnit;
  uint64_t value = 0;
  if (found == objects.end() || at + kUnit > found->second.size()) return value;
  std::memcpy(&value, found->second.data() + at, sizeof(value));
  return value;
}

void World::check_read(const Operation& operation, const Bytes& bytes) {
  for (uint32_t unit = 0; unit < operation.count; ++unit) {
    uint64_t value = 0;
    const size_t at = size_t{unit} * kUnit;
    if (at + kUnit <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(value));
    if (!check(operation, operation.first + unit, value, "a read")) return;
  }
}

void World::replied(uint64_t unique, int error, Bytes bytes) noexcept {
  const auto found = operations_.find(unique);
  if (found == operations_.end()) return fail("answered twice");
  if (error != 0 && failures_ == 0) fail("an operation failed by " + std::to_string(error));
  const Operation& operation = found->second;
  if (operation.kind == Kind::kSync) sync_failed_ = error != 0;
  if (operation.kind == Kind::kSync && error == 0) check_durable(operation);
  if (operation.kind == Kind::kRead && error == 0) check_read(operation, bytes);
  const uint32_t written = operation.kind == Kind::kWrite ? operation.count : 0;
  for (uint32_t unit = operation.first; unit < operation.first + written; ++unit) {
    units_[unit].busy = false;
    if (error == 0) units_[unit].answered = units_[unit].written.size() - 1;
    client_size_ =
        std::max(client_size_, offset_of(unit) + kUnit);  // an O_DSYNC one was done, if not durable
  }
  operations_.erase(found);
}

void World::told(Event event) {
  if (event.kind == EventKind::kCut) tellings_.push_back(std::move(event));
  if (event.kind != EventKind::kDone || event.token != kCutToken) return;
  if (event.a != 0 && failures_ != 0) return core().drain(kCutToken, kIno, false, false);
  if (event.a != 0) fail("a drain failed");
  begin_cut();
}

// ---- targets ----

void World::serve_one(Target& from) {
  if (from.connections.empty()) return;
  Connection& connection = *from.connections[pick(static_cast<uint32_t>(from.connections.size()))];
  if (one_in(2)) {
    deliver(connection);
  } else {
    serve(from, connection);
  }
}

// Of what was answered some is on its way, and arrives before the end does.
void World::break_connections(Target& of) {
  for (const auto& connection : of.connections) {
    while (!one_in(4) && deliver(*connection)) {
    }
  }
  hang_up(of);
}

void World::lose_power(Target& of) {
  for (uint32_t more = pick(6); more > 0; --more) serve_one(of);
  break_connections(of);
  of.store.lose_unsynced();
}

namespace {

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void run_seeds(const char* name, World::Cuts cuts, uint64_t count) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  const uint64_t first = number_of("BRAIDFS_SEED", 1);
  count = std::getenv("BRAIDFS_SEED") != nullptr ? 1 : number_of("BRAIDFS_SEEDS", count);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    World world(seed, cuts);
    const std::string failure = world.run();
    ASSERT_EQ(failure, "") << "again by: BRAIDFS_SEED=" << seed
                           << " test_client --gtest_filter=Worlds." << name;
  }
}

TEST(Worlds, WhatFsyncAnsweredIsDurable) {
  run_seeds("WhatFsyncAnsweredIsDurable", World::Cuts::kNone, 700);
}

TEST(Worlds, WhatFsyncAnsweredIsDurableWhileTheFileIsCut) {
  run_seeds("WhatFsyncAnsweredIsDurableWhileTheFileIsCut", World::Cuts::kByPython, 300);
}

TEST(Worlds, WhatWasCutOffStaysAwayWhileLanesCut) {
  run_seeds("WhatWasCutOffStaysAwayWhileLanesCut", World::Cuts::kByLanes, 400);
}

}  // namespace
}  // namespace braidfs::client::rig
