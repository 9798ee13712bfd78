#include "programs.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

namespace braidfs::world {

namespace {

constexpr uint32_t kUnit = Truth::kUnit;
constexpr uint32_t kUnitsOfBlock = limits::kBlockSize / kUnit;
constexpr uint32_t kUnitsMax = 40;  // of a call
constexpr uint32_t kInterruptedOneIn = 30;
constexpr Duration kKernelWaits = microseconds(200);
constexpr Duration kRests = seconds(8);  // with the file closed

Bytes filled(uint64_t value, uint32_t units) {
  Bytes bytes(size_t{units} * kUnit);
  for (size_t at = 0; at < bytes.size(); at += sizeof(value))
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

}  // namespace

Programs::Programs(Clockwork& clockwork, Mount& mount, Judge& judge,
                   std::vector<std::unique_ptr<SharedFile>>& files, uint64_t& values,
                   uint32_t count)
    : clockwork_(clockwork),
      mount_(mount),
      judge_(judge),
      files_(files),
      programs_(count),
      last_value_(values) {
  Chance& chance = clockwork_.chance;
  for (uint32_t number = 0; number < count; ++number) {
    Program& program = programs_[number];
    program.number = number;
    program.file = files_[chance.pick(static_cast<uint32_t>(files_.size()))].get();
    program.only_reads = chance.one_in(8);
    for (uint32_t& unit : program.hot) unit = chance.pick(program.file->truth.count());
  }
  constexpr std::array<uint32_t, 3> kCutsOneIn{0, 8, 30};
  cuts_one_in_ = kCutsOneIn[chance.pick(kCutsOneIn.size())];
  const std::array<Duration, 3> kThinks{milliseconds(1), milliseconds(20), milliseconds(400)};
  thinks_ = kThinks[chance.pick(kThinks.size())];
}

void Programs::fail(const Program& program, const std::string& what) const {
  throw BrokenPromise("program " + std::to_string(program.number) + ", " + program.doing + ": " +
                      what);
}

bool Programs::is_well(const Program& program, int64_t error) const {
  if (error == 0) return true;
  clockwork_.trace.note("program %u has error %d", program.number, static_cast<int>(error));
  if (error == EIO && program.file->truth.has_lost()) return false;
  fail(program, "error " + std::to_string(error));
  return false;
}

// Of a client that has ended nobody hears any more.
Mount::Done Programs::alive(Mount::Done then) const {
  return [this, then = std::move(then)](int error, const Bytes& bytes) {
    if (!are_dead_) then(error, bytes);
  };
}

void Programs::start() {
  for (Program& program : programs_) open(program, [this, &program] { next(program); });
}

std::string Programs::under_way() const {
  std::string all;
  for (const Program& program : programs_) {
    if (!program.doing.empty())
      all += "program " + std::to_string(program.number) + ": " + program.doing + "; ";
  }
  return all;
}

void Programs::open(Program& program, const std::function<void()>& then) {
  program.doing = "open";
  const uint64_t fh = ++last_fh_;
  mount_.open(program.file->ino, fh, program.only_reads ? O_RDONLY : O_RDWR,
              [this, &program, then, fh] {
                if (are_dead_) return;
                program.fh = fh;
                program.doing.clear();
                then();
              });
}

void Programs::next(Program& program) {
  mount_.later(clockwork_.chance.up_to(thinks_), [this, &program] {
    if (!are_dead_) begin(program);
  });
}

void Programs::begin(Program& program) {
  if (ending_) return;
  ++calls_;
  Chance& chance = clockwork_.chance;
  if (program.fh == 0) return open(program, [this, &program] { next(program); });
  if (program.only_reads) return chance.one_in(8) ? close_some(program) : read(program);
  if (cuts_one_in_ != 0 && chance.one_in(cuts_one_in_)) return cut(program);
  const uint32_t what = chance.pick(100);
  if (what < 48) return write(program);
  if (what < 74) return read(program);
  if (what < 88) return fsync(program);
  if (what < 94) return close_some(program);
  if (what < 97) return seek(program);
  punch(program);
}

// It opens the file again at once, or after a while.
void Programs::close_some(Program& program) {
  close(program, [this, &program] {
    if (clockwork_.chance.one_in(2)) return open(program, [this, &program] { next(program); });
    mount_.later(clockwork_.chance.up_to(kRests), [this, &program] {
      if (!are_dead_) begin(program);
    });
  });
}

void Programs::done(Program& program) {
  clockwork_.trace.note("program %u has done: %s", program.number, program.doing.c_str());
  program.doing.clear();
  next(program);
}

// A signal: the call ends at once, what it has begun goes on.
void Programs::interrupt_some(uint64_t unique) {
  if (clockwork_.calm || !clockwork_.chance.one_in(kInterruptedOneIn)) return;
  mount_.later(clockwork_.chance.up_to(milliseconds(5)),
               [this, unique] { mount_.interrupt(unique); });
}

// Calls come again and again to some places, so that they meet there.
std::pair<uint32_t, uint32_t> Programs::some_units(Program& program) {
  Chance& chance = clockwork_.chance;
  const uint32_t all = program.file->truth.count();
  uint32_t first =
      chance.one_in(3) ? chance.pick(all) : program.hot[chance.pick(kHotPlaces)] + chance.pick(12);
  if (chance.one_in(3)) first = first / kUnitsOfBlock * kUnitsOfBlock;  // whole blocks
  first = std::min(first, all - 1);
  const uint32_t most = chance.one_in(4) ? kUnitsMax : kUnitsOfBlock * 2;
  return {first, 1 + chance.pick(std::min(all - first, most))};
}

uint64_t Programs::new_value(SharedFile& file, uint32_t first, uint32_t count) {
  file.truth.writes(first, count, ++last_value_, mount_.session());
  return last_value_;
}

void Programs::write(Program& program) {
  SharedFile& file = *program.file;
  auto [first, count] = some_units(program);
  if (clockwork_.chance.one_in(5)) {  // an append
    first = static_cast<uint32_t>(file.size / kUnit);
    count = first < file.truth.count() ? std::min(count, file.truth.count() - first) : 0;
  }
  if (count == 0 || !file.may_be_written() || !file.truth.is_free(first, count))
    return next(program);
  constexpr std::array<uint32_t, 8> kFlags{0, 0, 0, 0, 0, O_DIRECT, O_DSYNC, O_SYNC};
  const uint32_t flags = kFlags[clockwork_.chance.pick(kFlags.size())];
  const bool is_durable = (flags & O_DSYNC) != 0;
  const uint64_t value = new_value(file, first, count);
  program.doing = "write " + std::to_string(value) + " to " + std::to_string(first) + "+" +
                  std::to_string(count) + (is_durable ? " durably" : "");
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  mount_.write({file.ino, program.fh, uint64_t{first} * kUnit}, filled(value, count), flags,
               alive([=, this, &program, &file](int error, const Bytes&) {
                 if (is_well(program, error)) {
                   file.truth.wrote(first, count, is_durable);
                   file.size = std::max(file.size, uint64_t{first + count} * kUnit);
                 } else {
                   file.truth.failed(first, count);
                   file.is_size_known = false;
                 }
                 done(program);
               }));
}

void Programs::read(Program& program) {
  SharedFile& file = *program.file;
  auto [first, count] = some_units(program);
  if (clockwork_.chance.one_in(4)) count = file.truth.count() - first;
  read_units(program, first, count);
}

void Programs::read_units(Program& program, uint32_t first, uint32_t count) {
  SharedFile& file = *program.file;
  program.doing = "read " + std::to_string(first) + "+" + std::to_string(count);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  const uint64_t lease = mount_.lease_number(file.ino);
  interrupt_some(mount_.read(
      {file.ino, program.fh, uint64_t{first} * kUnit}, count * kUnit,
      alive([this, &program, first, count, lease, since = file.truth.since()](int error,
                                                                              const Bytes& bytes) {
        if (error == EINTR || !is_well(program, error)) return done(program);
        look_at(program, {first, values_of(bytes, count), bytes.size() / kUnit, since, lease});
      })));
}

void Programs::look_at(Program& program, const Seen& seen) {
  SharedFile& file = *program.file;
  if (!mount_.has_leases()) return done(program);
  const std::string wrong = file.truth.check(seen.since, seen.first, seen.values);
  // A lease that goes takes along what was held: whether that is lost is known when it is back.
  if (!wrong.empty() && mount_.gives_back(file.ino)) {
    return mount_.later(kKernelWaits, [this, &program, seen] {
      if (!are_dead_) look_at(program, seen);
    });
  }
  if (!wrong.empty()) fail(program, "I9: " + wrong);
  if (seen.lease != 0 && seen.lease == mount_.lease_number(file.ino))
    file.truth.saw(seen.since, seen.first, std::span(seen.values).first(seen.count));
  done(program);
}

void Programs::fsync(Program& program) {
  SharedFile& file = *program.file;
  program.doing = "fsync";
  clockwork_.trace.note("program %u: fsync", program.number);
  interrupt_some(mount_.fsync(
      {file.ino, program.fh},
      alive([this, &program, &file, answered = file.truth.answered_to(mount_.session())](
                int error, const Bytes&) {
        if (error == EINTR || !is_well(program, error)) return done(program);
        file.truth.synced(answered);
        done(program);
      })));
}

// Where there is data, or a hole, as far as the truth knows.
void Programs::seek(Program& program) {
  SharedFile& file = *program.file;
  const uint32_t from = clockwork_.chance.pick(file.truth.count());
  const bool hole = clockwork_.chance.one_in(2);
  program.doing = (hole ? "seek a hole from " : "seek data from ") + std::to_string(from);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  mount_.seek(file.ino, uint64_t{from} * kUnit, hole,
              [=, this, &program, &file, since = file.truth.since()](int64_t error, int64_t at) {
                if (are_dead_) return;
                if (mount_.has_leases() && is_well(program, error))
                  sought(program, from, at, hole, since);
                done(program);
              });
}

void Programs::sought(Program& program, uint32_t from, int64_t at, bool hole,
                      const Truth::Since& since) {
  const SharedFile& file = *program.file;
  const uint32_t count = file.truth.count();
  const auto found = at < 0 ? count : static_cast<uint32_t>(std::min<int64_t>(at / kUnit, count));
  const uint32_t end = hole ? std::min(count, found + 1) : found;
  const uint32_t begin = hole ? found : from;
  if (begin >= end) return;
  const std::vector<uint64_t> zeros(end - begin);
  const std::string wrong = file.truth.check(since, begin, zeros);
  if (!wrong.empty()) fail(program, "a hole is found: " + wrong);
}

void Programs::close(Program& program, const std::function<void()>& then) {
  program.doing = "close";
  clockwork_.trace.note("program %u: close", program.number);
  SharedFile& file = *program.file;
  const Mount::Place place{file.ino, program.fh};
  mount_.flush(
      place, alive([this, &program, &file, place, then, losses = file.truth.since().losses,
                    answered = file.truth.answered_to(mount_.session())](int error, const Bytes&) {
        if (is_well(program, error) && !program.only_reads)
          judge_.closed(file, mount_.session(), {answered, losses});
        mount_.release(place, alive([this, &program, then](int, const Bytes&) {
                         clockwork_.trace.note("program %u has closed", program.number);
                         program.fh = 0;
                         program.doing.clear();
                         then();
                       }));
      }));
}

// No write is under way meanwhile: the kernel sees to that.
void Programs::cut(Program& program) {
  SharedFile& file = *program.file;
  if (!file.may_be_written()) return next(program);
  program.doing = "wait to cut the file";
  file.refuser = mount_.session();
  cut_now(program);
}

void Programs::cut_now(Program& program) {
  SharedFile& file = *program.file;
  if (are_dead_) return;
  if (!file.truth.is_free())
    return mount_.later(kKernelWaits, [this, &program] { cut_now(program); });
  file.refuser = 0;
  file.cutter = mount_.session();
  Chance& chance = clockwork_.chance;
  const uint32_t all = file.truth.count();
  const uint32_t unit = chance.one_in(8) ? 0 : chance.pick(all);
  const uint64_t size = uint64_t{unit} * kUnit;
  program.doing = "cut the file to " + std::to_string(unit);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  file.truth.writes(unit, all - unit, 0, mount_.session());
  const auto by_python = [=, this, &program, &file] {
    mount_.set_size(file.ino, size, [=, this, &program](int64_t error) {
      if (!are_dead_) cut_done(program, unit, true, error);
    });
  };
  if (chance.one_in(2)) return by_python();
  mount_.cut({file.ino, program.fh}, size, alive([=, this, &program](int error, const Bytes&) {
               error == 0 ? cut_done(program, unit, false, 0) : by_python();
             }));
}

void Programs::cut_done(Program& program, uint32_t unit, bool is_durable, int64_t error) {
  SharedFile& file = *program.file;
  const uint32_t count = file.truth.count() - unit;
  const uint64_t size = uint64_t{unit} * kUnit;
  const bool is_well_done = is_well(program, error);
  file.is_size_known = is_well_done;
  if (is_well_done && !file.has_remains) {
    file.truth.wrote(unit, count, is_durable);
  } else {
    file.truth.uncovered(unit, count);
  }
  if (is_well_done) file.size = size;
  file.cutter = 0;
  done(program);
}

void Programs::punch(Program& program) {
  SharedFile& file = *program.file;
  auto [first, count] = some_units(program);
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(first + count, file.size / kUnit));
  if (!file.may_be_written() || first >= end || !file.truth.is_free()) return next(program);
  count = end - first;
  file.cutter = mount_.session();  // the kernel locks the inode
  file.truth.writes(first, count, 0, mount_.session());
  program.doing = "punch " + std::to_string(first) + "+" + std::to_string(count);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  mount_.punch(file.ino, uint64_t{first} * kUnit, uint64_t{end} * kUnit,
               [=, this, &program, &file](int64_t error) {
                 if (are_dead_) return;
                 if (is_well(program, error)) {
                   file.truth.wrote(first, count, true);
                 } else {
                   file.truth.failed(first, count);
                 }
                 file.cutter = 0;
                 done(program);
               });
}

void Programs::read_all() {
  for (Program& program : programs_) {
    open(program, [this, &program] { read_units(program, 0, program.file->truth.count()); });
  }
}

void Programs::sync_all() {
  for (Program& program : programs_) {
    if (program.fh != 0) fsync(program);
  }
}

void Programs::close_all() {
  for (Program& program : programs_) {
    if (program.fh != 0) close(program, [] {});
  }
}

}  // namespace braidfs::world
