#include "repair.h"

#include <algorithm>
#include <cstring>

#include "braidfs/leases.h"
#include "braidfs/limits.h"

namespace braidfs::world {

namespace {

constexpr Duration kResent = seconds(60);
constexpr Duration kLook = milliseconds(1500);
constexpr Duration kPatience = seconds(8);
constexpr Duration kGivenUp = seconds(3);
constexpr Duration kStep = milliseconds(2);
constexpr uint32_t kPieceBytes = 64u << 10;
constexpr uint32_t kKilledOneIn = 40;  // steps
constexpr uint32_t kSlowOneIn = 8;     // steps

}  // namespace

Repair::Repair(Clockwork& clockwork, Metaserver& metaserver, Network& network,
               std::vector<std::unique_ptr<StorageHost>>& hosts, Mutant mutant)
    : clockwork_(clockwork),
      metaserver_(metaserver),
      mutant_(mutant),
      calls_("repair", clockwork, network, hosts, nullptr) {}

void Repair::start() {
  clockwork_.agenda.after(clockwork_.chance.up_to(kLook), [this] { look(); });
}

void Repair::look() {
  for (const auto& [ino, file] : metaserver_.files()) {
    if (file.is_replicated && !file.is_whole()) return begin(ino);
  }
  start();
}

void Repair::begin(uint64_t ino) {
  auto job = std::make_shared<Job>();
  job->ino = ino;
  metaserver_.acquire(Metaserver::kSystem, ino, false, [this, job](auto) {
    if (!plan(*job)) return end(job, "there is nothing to do");
    for (const Name& name : job->names)
      job->steps.push_back([this, name](const JobPtr& one) { copy(one, name); });
    job->steps.push_back(
        [this](const JobPtr& one) { ask_all(one, Op::kSync, one->layout.epoch, false); });
    if (mutant_ != Mutant::kAddedUnraised)
      job->steps.push_back(
          [this](const JobPtr& one) { ask_all(one, Op::kRaiseEpoch, one->epoch, true); });
    job->steps.push_back([this](const JobPtr& one) { add(one); });
    next(job);
  });
}

bool Repair::plan(Job& job) {
  FileRecord& file = metaserver_.file(job.ino);
  if (!metaserver_.holds(Metaserver::kSystem, job.ino, kLeaseData) ||
      metaserver_.cuts_.contains(job.ino) || may_be_resent(file))
    return false;
  metaserver_.give_up_plan(job.ino);
  const uint32_t generation = file.generation_last + 1;
  for (uint32_t stripe = 0; stripe < file.width; ++stripe) {
    std::vector<uint32_t> there;
    for (const Name& name : file.names_of(stripe)) there.push_back(name.target);
    if (there.size() >= file.wanted) continue;
    const auto lacking = static_cast<uint32_t>(file.wanted - there.size());
    for (const uint32_t target : metaserver_.place(lacking, there)) {
      if (!metaserver_.is_up(target)) continue;
      job.names.push_back({target, file.file_id, object_number(stripe, generation)});
    }
  }
  if (job.names.empty()) return false;
  file.generation_last = generation;
  job.layout = file;
  job.epoch = file.epoch + 1;
  for (const Name& name : file.names())
    job.incarnations[name.target] = metaserver_.incarnation(name.target);
  metaserver_.planned_[job.ino] = {file.file_id, job.epoch, job.names};
  clockwork_.trace.note("file %llu: %zu copies are planned for epoch %u",
                        static_cast<unsigned long long>(job.ino), job.names.size(), job.epoch);
  return true;
}

// A client may send again what a target has lost, so nothing is copied that lacks it.
bool Repair::may_be_resent(const FileRecord& file) const {
  const Time since = VirtualTime::now() - kResent;
  const auto names = file.names();
  return metaserver_.is_torn(file.ino) &&
         std::any_of(names.begin(), names.end(),
                     [&](const Name& name) { return metaserver_.raised_at(name.target) > since; });
}

// Between two steps the job may be late, or end.
void Repair::next(const JobPtr& job) {
  Chance& chance = clockwork_.chance;
  if (!clockwork_.calm && chance.one_in(kKilledOneIn)) return end(job, "it is killed");
  const bool is_slow = !clockwork_.calm && chance.one_in(kSlowOneIn);
  clockwork_.agenda.after(chance.up_to(is_slow ? Duration(seconds(6)) : kStep), [this, job] {
    if (!is_claimed(*job)) return end(job, "it is to be written");
    job->steps[job->at++](job);
  });
}

bool Repair::is_claimed(const Job& job) const {
  return metaserver_.holds(Metaserver::kSystem, job.ino, kLeaseData) ||
         mutant_ == Mutant::kAddedUnclaimed;
}

void Repair::end(const JobPtr& job, const char* why) {
  clockwork_.trace.note("file %llu: the job of copies ends: %s",
                        static_cast<unsigned long long>(job->ino), why);
  const Duration rest = clockwork_.chance.up_to(clockwork_.calm ? kStep : kGivenUp);
  clockwork_.agenda.after(rest, [this, job] {
    metaserver_.give_up_plan(job->ino);
    metaserver_.give_back(Metaserver::kSystem, job->ino, {kLeaseData, ~uint64_t{0}});
    start();
  });
}

bool Repair::has_power(const Job& job, const Name& name, const Answer& answer) const {
  const auto known = job.incarnations.find(name.target);
  return known != job.incarnations.end() && known->second == answer.incarnation();
}

// Whether the target of the copy has not lost what it got before.
bool Repair::has_kept(Job& job, const Name& name, const Answer& answer) {
  const uint64_t first = job.sinks.emplace(name, answer.incarnation()).first->second;
  return answer.is_ok() && first == answer.incarnation();
}

// A missing object that was durable once: another replica is taken at the next try.
void Repair::lost(const JobPtr& job, const Name& name) {
  const auto is_there = [this](uint32_t target) { return metaserver_.is_up(target); };
  metaserver_.remove(job->ino, metaserver_.droppable(metaserver_.file(job->ino), {name}, is_there));
  end(job, "a replica is lost");
}

// ---- the copy ----

void Repair::copy(const JobPtr& job, const Name& name) {
  const auto sources = job->layout.names_of(name.stripe());
  const Name source = sources[clockwork_.chance.pick(static_cast<uint32_t>(sources.size()))];
  const Frame stat = frame_of(Op::kStat, source.object(), source.target);
  calls_.call(source.target, stat, kPatience, [=, this](const Answer& answer) {
    const bool is_absent = answer.is(Status::kNoObject);
    if (!answer.is_ok() && !is_absent) return end(job, "the source does not answer");
    if (!has_power(*job, source, answer)) return end(job, "the source lost power");
    if (is_absent && job->layout.was_durable(name.stripe())) return lost(job, source);
    if (is_absent) return finish_copy(job, name, 0);
    uint64_t length = 0;
    std::memcpy(&length, answer.frame.body.data(), sizeof(length));
    move(job, name, source, length, 0);
  });
}

void Repair::move(const JobPtr& job, const Name& name, const Name& source, uint64_t length,
                  uint64_t offset) {
  if (offset >= length) return finish_copy(job, name, length);
  Frame read = frame_of(Op::kRead, source.object(), source.target);
  read.header.offset = offset;
  read.header.length = static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, length - offset));
  read.header.flags |= kFlagMustExist;
  const uint32_t count = read.header.length;
  calls_.call(source.target, read, kPatience, [=, this](const Answer& got) {
    if (!got.is_ok() || got.frame.header.payload_length != count)
      return end(job, "the source cannot be read");
    if (!has_power(*job, source, got)) return end(job, "the source lost power");
    Frame write = frame_of(Op::kWrite, name.object(), name.target);
    write.header.flags |= kFlagSums;
    write.header.offset = offset;
    write.header.length = count;
    write.body = got.frame.body;
    write.payload = got.frame.payload;
    calls_.call(name.target, write, kPatience, [=, this](const Answer& wrote) {
      if (!has_kept(*job, name, wrote)) return end(job, "the copy cannot be written");
      move(job, name, source, length, offset + count);
    });
  });
}

// Writes of this attempt that are late change nothing from now on.
void Repair::finish_copy(const JobPtr& job, const Name& name, uint64_t length) {
  Frame cut = frame_of(Op::kTruncate, name.object(), name.target, job->epoch);
  cut.header.offset = length;
  calls_.call(name.target, cut, kPatience, [=, this](const Answer& was_cut) {
    if (!has_kept(*job, name, was_cut)) return end(job, "the copy does not get its epoch");
    const Frame sync = frame_of(Op::kSync, name.object(), name.target, job->epoch);
    calls_.call(name.target, sync, kPatience, [=, this](const Answer& synced) {
      if (!has_kept(*job, name, synced)) return end(job, "the copy is not durable");
      next(job);
    });
  });
}

// ---- what stays ----

void Repair::ask_all(const JobPtr& job, Op op, uint32_t epoch, bool must_exist) {
  const auto names = job->layout.names();
  auto left = std::make_shared<size_t>(names.size());
  auto failed = std::make_shared<const char*>(nullptr);
  auto missing = std::make_shared<std::vector<Name>>();
  for (const Name& name : names) {
    Frame frame = frame_of(op, name.object(), name.target, epoch);
    const bool was_durable = job->layout.was_durable(name.stripe());
    if (must_exist && was_durable) frame.header.flags |= kFlagMustExist;
    calls_.call(name.target, frame, kPatience, [=, this](const Answer& answer) {
      const bool is_absent = answer.is(Status::kNoObject);
      if (is_absent && was_durable) missing->push_back(name);
      if (!answer.is_ok() && !is_absent) *failed = "a replica does not answer";
      if (!has_power(*job, name, answer)) *failed = "a replica lost power";
      if (--*left > 0) return;
      if (*failed != nullptr) return end(job, *failed);
      if (!missing->empty()) return lost(job, missing->front());
      next(job);
    });
  }
}

void Repair::add(const JobPtr& job) {
  FileRecord& file = metaserver_.file(job->ino);
  const auto planned = metaserver_.planned_.find(job->ino);
  const bool is_planned =
      planned != metaserver_.planned_.end() && planned->second.names == job->names;
  bool is_as_planned = file.file_id == job->layout.file_id && file.epoch == job->layout.epoch;
  for (const auto& [target, incarnation] : job->incarnations)
    is_as_planned = is_as_planned && metaserver_.incarnation(target) == incarnation;
  if (!is_planned || !is_as_planned) return end(job, "the file has changed");
  for (const Name& name : job->names) file.add(name);
  file.epoch = job->epoch;
  metaserver_.planned_.erase(planned);
  clockwork_.trace.note("file %llu: copies are added at epoch %u",
                        static_cast<unsigned long long>(job->ino), job->epoch);
  metaserver_.watcher->added(job->ino);
  for (const Name& name : metaserver_.dropped_) {
    if (name.file_id == file.file_id && file.names_of(name.stripe()).size() >= file.wanted)
      metaserver_.doomed_.insert(name);
  }
  end(job, "it is done");
}

}  // namespace braidfs::world
