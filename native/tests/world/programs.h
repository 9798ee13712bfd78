// The programs of a client: each opens a file and reads, writes, appends, cuts, punches, seeks,
// syncs and closes it, one call after another, as its chance says. What they learn is held against
// the truth. They end with their client.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clockwork.h"
#include "judge.h"
#include "mount.h"
#include "truth.h"

namespace braidfs::world {

class Programs {
 public:
  // values: of all programs of the world, up to the last one.
  Programs(Clockwork& clockwork, Mount& mount, Judge& judge,
           std::vector<std::unique_ptr<SharedFile>>& files, uint64_t& values, uint32_t count);

  void start();
  void end() noexcept { ending_ = true; }  // no call begins any more
  // Their client was killed, or evicted, whether it knows that or not.
  void die() noexcept { are_dead_ = true; }
  bool are_dead() const noexcept { return are_dead_; }
  // What goes on; empty: nothing.
  std::string under_way() const;
  // One more fsync of each file; then they hold what was written last, durably.
  void sync_all();
  void close_all();
  void read_all();
  uint64_t calls() const noexcept { return calls_; }

 private:
  static constexpr uint32_t kHotPlaces = 4;
  struct Program {
    uint32_t number = 0;
    SharedFile* file = nullptr;
    bool only_reads = false;
    uint64_t fh = 0;             // 0: the file is not open
    std::string doing{};         // empty: nothing
    uint32_t hot[kHotPlaces]{};  // units
  };

  void next(Program& program);
  void begin(Program& program);
  void done(Program& program);
  void interrupt_some(uint64_t unique);
  void open(Program& program, const std::function<void()>& then);
  void write(Program& program);
  void read(Program& program);
  void read_units(Program& program, uint32_t first, uint32_t count);
  // What a read gave that began when `since` was, under the lease of that number.
  struct Seen {
    uint32_t first = 0;
    std::vector<uint64_t> values{};
    size_t count = 0;  // of those that are not behind the file's end
    Truth::Since since{};
    uint64_t lease = 0;
  };
  void look_at(Program& program, const Seen& seen);
  void fsync(Program& program);
  void seek(Program& program);
  void sought(Program& program, uint32_t from, int64_t at, bool hole, const Truth::Since& since);
  void close_some(Program& program);
  void close(Program& program, const std::function<void()>& then);
  void cut(Program& program);
  void cut_now(Program& program);
  void cut_done(Program& program, uint32_t unit, bool is_durable, int64_t error);
  void punch(Program& program);
  uint64_t new_value(SharedFile& file, uint32_t first, uint32_t count);
  std::pair<uint32_t, uint32_t> some_units(Program& program);
  void fail(const Program& program, const std::string& what) const;
  // Whether a call went well. If not, that was to be expected; else it is thrown.
  bool is_well(const Program& program, int64_t error) const;
  Mount::Done alive(Mount::Done then) const;

  Clockwork& clockwork_;
  Mount& mount_;
  Judge& judge_;
  std::vector<std::unique_ptr<SharedFile>>& files_;
  std::vector<Program> programs_;
  uint64_t& last_value_;
  uint64_t last_fh_ = 0;
  uint64_t calls_ = 0;
  bool ending_ = false;
  bool are_dead_ = false;
  uint32_t cuts_one_in_;
  Duration thinks_;
};

}  // namespace braidfs::world
