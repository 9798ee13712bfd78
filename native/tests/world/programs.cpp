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

Bytes filled(uint64_t value, uint32_t units) {
  Bytes bytes(size_t{units} * kUnit);
  for (size_t at = 0; at < bytes.size(); at += sizeof(value))
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

}  // namespace

std::vector<uint64_t> values_of(Bytes bytes, uint32_t units) {
  bytes.resize(size_t{units} * kUnit);
  std::vector<uint64_t> values(units);
  for (uint32_t unit = 0; unit < units; ++unit) {
    const auto whole = std::span(bytes).subspan(size_t{unit} * kUnit, kUnit);
    std::memcpy(&values[unit], whole.data(), sizeof(uint64_t));
    const Bytes expected = filled(values[unit], 1);
    if (!std::equal(whole.begin(), whole.end(), expected.begin())) values[unit] = ~uint64_t{0};
  }
  return values;
}

Programs::Programs(Clockwork& clockwork, Mount& mount,
                   std::vector<std::unique_ptr<SharedFile>>& files, uint32_t count)
    : clockwork_(clockwork), mount_(mount), files_(files), programs_(count) {
  Chance& chance = clockwork_.chance;
  for (uint32_t number = 0; number < count; ++number) {
    Program& program = programs_[number];
    program.number = number;
    program.file = files_[chance.pick(static_cast<uint32_t>(files_.size()))].get();
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

void Programs::start() {
  for (Program& program : programs_) {
    open(program);
    next(program);
  }
}

std::string Programs::under_way() const {
  std::string all;
  for (const Program& program : programs_) {
    if (!program.doing.empty())
      all += "program " + std::to_string(program.number) + ": " + program.doing + "; ";
  }
  return all;
}

void Programs::open(Program& program) {
  program.fh = ++last_fh_;
  mount_.open(program.file->ino, program.fh);
}

void Programs::next(Program& program) {
  clockwork_.agenda.after(clockwork_.chance.up_to(thinks_), [this, &program] { begin(program); });
}

void Programs::begin(Program& program) {
  if (ending_) return;
  ++calls_;
  if (cuts_one_in_ != 0 && clockwork_.chance.one_in(cuts_one_in_)) return cut(program);
  const uint32_t what = clockwork_.chance.pick(100);
  if (what < 50) return write(program);
  if (what < 78) return read(program);
  if (what < 92) return fsync(program);
  if (what < 97) return close(program);
  punch(program);
}

void Programs::done(Program& program) {
  clockwork_.trace.note("program %u has done: %s", program.number, program.doing.c_str());
  program.doing.clear();
  next(program);
}

// A signal: the call ends at once, what it has begun goes on.
void Programs::interrupt_some(uint64_t unique) {
  if (clockwork_.calm || !clockwork_.chance.one_in(kInterruptedOneIn)) return;
  clockwork_.agenda.after(clockwork_.chance.up_to(milliseconds(5)),
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
  file.truth.writes(first, count, ++last_value_);
  return last_value_;
}

void Programs::write(Program& program) {
  SharedFile& file = *program.file;
  auto [first, count] = some_units(program);
  if (clockwork_.chance.one_in(5)) {  // an append
    first = static_cast<uint32_t>(file.size / kUnit);
    count = first < file.truth.count() ? std::min(count, file.truth.count() - first) : 0;
  }
  if (count == 0 || file.is_being_cut || file.refuses_writes || !file.truth.is_free(first, count))
    return next(program);
  constexpr std::array<uint32_t, 8> kFlags{0, 0, 0, 0, 0, O_DIRECT, O_DSYNC, O_SYNC};
  const uint32_t flags = kFlags[clockwork_.chance.pick(kFlags.size())];
  const bool is_durable = (flags & O_DSYNC) != 0;
  const uint64_t value = new_value(file, first, count);
  program.doing = "write " + std::to_string(value) + " to " + std::to_string(first) + "+" +
                  std::to_string(count) + (is_durable ? " durably" : "");
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  mount_.write({file.ino, program.fh, uint64_t{first} * kUnit}, filled(value, count), flags,
               [=, this, &program, &file](int error, const Bytes&) {
                 if (error != 0) fail(program, "error " + std::to_string(error));
                 file.truth.wrote(first, count, is_durable);
                 file.size = std::max(file.size, uint64_t{first + count} * kUnit);
                 done(program);
               });
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
  interrupt_some(mount_.read({file.ino, program.fh, uint64_t{first} * kUnit}, count * kUnit,
                             [this, &program, &file, first, count, least = file.truth.answered()](
                                 int error, const Bytes& bytes) {
                               if (error == EINTR) return done(program);
                               if (error != 0) fail(program, "error " + std::to_string(error));
                               const std::string wrong =
                                   file.truth.check(least, first, values_of(bytes, count));
                               if (!wrong.empty()) fail(program, wrong);
                               done(program);
                             }));
}

void Programs::fsync(Program& program) {
  SharedFile& file = *program.file;
  program.doing = "fsync";
  clockwork_.trace.note("program %u: fsync", program.number);
  interrupt_some(mount_.fsync(
      {file.ino, program.fh},
      [this, &program, &file, answered = file.truth.answered()](int error, const Bytes&) {
        if (error == EINTR) return done(program);
        if (error != 0) fail(program, "error " + std::to_string(error));
        file.truth.synced(answered);
        done(program);
      }));
}

void Programs::close(Program& program) {
  program.doing = "close";
  clockwork_.trace.note("program %u: close", program.number);
  const Mount::Place place{program.file->ino, program.fh};
  mount_.flush(place, [this, &program, place](int error, const Bytes&) {
    if (error != 0) fail(program, "error " + std::to_string(error));
    mount_.release(place, [this, &program](int, const Bytes&) {
      open(program);
      done(program);
    });
  });
}

// No write is under way meanwhile: the kernel sees to that.
void Programs::cut(Program& program) {
  SharedFile& file = *program.file;
  if (file.is_being_cut || file.refuses_writes) return next(program);
  program.doing = "wait to cut the file";
  file.refuses_writes = true;
  cut_now(program);
}

void Programs::cut_now(Program& program) {
  SharedFile& file = *program.file;
  if (!file.truth.is_free())
    return clockwork_.agenda.after(kKernelWaits, [this, &program] { cut_now(program); });
  file.refuses_writes = false;
  file.is_being_cut = true;
  Chance& chance = clockwork_.chance;
  const uint32_t all = file.truth.count();
  const uint32_t unit = chance.one_in(8) ? 0 : chance.pick(all);
  const uint64_t size = uint64_t{unit} * kUnit;
  program.doing = "cut the file to " + std::to_string(unit);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  file.truth.writes(unit, all - unit, 0);
  const auto by_python = [=, this, &program, &file] {
    mount_.set_size(file.ino, size, [=, this, &program](int64_t error) {
      if (error != 0) fail(program, "error " + std::to_string(error));
      cut_done(program, unit, true);
    });
  };
  if (chance.one_in(2)) return by_python();
  mount_.cut({file.ino, program.fh}, size, [=, this, &program](int error, const Bytes&) {
    error == 0 ? cut_done(program, unit, false) : by_python();
  });
}

void Programs::cut_done(Program& program, uint32_t unit, bool is_durable) {
  SharedFile& file = *program.file;
  file.truth.wrote(unit, file.truth.count() - unit, is_durable);
  file.size = uint64_t{unit} * kUnit;
  file.is_being_cut = false;
  done(program);
}

void Programs::punch(Program& program) {
  SharedFile& file = *program.file;
  auto [first, count] = some_units(program);
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(first + count, file.size / kUnit));
  if (file.is_being_cut || file.refuses_writes || first >= end || !file.truth.is_free())
    return next(program);
  count = end - first;
  file.is_being_cut = true;  // the kernel locks the inode
  file.truth.writes(first, count, 0);
  program.doing = "punch " + std::to_string(first) + "+" + std::to_string(count);
  clockwork_.trace.note("program %u: %s", program.number, program.doing.c_str());
  mount_.punch(file.ino, uint64_t{first} * kUnit, uint64_t{end} * kUnit,
               [=, this, &program, &file](int64_t error) {
                 if (error != 0) fail(program, "error " + std::to_string(error));
                 file.truth.wrote(first, count, true);
                 file.is_being_cut = false;
                 done(program);
               });
}

bool Programs::opens(const SharedFile& file) const {
  return std::any_of(programs_.begin(), programs_.end(),
                     [&](const Program& program) { return program.file == &file; });
}

void Programs::read_all() {
  for (Program& program : programs_) read_units(program, 0, program.file->truth.count());
}

void Programs::sync_all() {
  for (Program& program : programs_) fsync(program);
}

}  // namespace braidfs::world
