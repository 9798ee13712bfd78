// The programs of a client: each opens a file and reads, writes, appends, cuts, punches, syncs and
// closes it, one call after another, as its chance says. What they learn is held against the truth.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "clockwork.h"
#include "mount.h"
#include "truth.h"

namespace braidfs::world {

// Something that was promised does not hold.
class BrokenPromise : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One file, as its programs know it.
struct SharedFile {
  uint64_t ino = 0;
  uint32_t chunk_units = 0;
  Truth truth;
  uint64_t size = 0;            // as a program would see it
  bool is_being_cut = false;    // the kernel lets no write begin
  bool refuses_writes = false;  // somebody waits until no write is under way
};

// The values of `units` units, one after another; bytes that are missing are zeros. A unit that is
// not of one value has one that nobody wrote.
std::vector<uint64_t> values_of(Bytes bytes, uint32_t units);

class Programs {
 public:
  Programs(Clockwork& clockwork, Mount& mount, std::vector<std::unique_ptr<SharedFile>>& files,
           uint32_t count);

  void start();
  void end() noexcept { ending_ = true; }  // no call begins any more
  // What goes on; empty: nothing.
  std::string under_way() const;
  // One more fsync of each file; then they hold what was written last, durably.
  void sync_all();
  void read_all();
  bool opens(const SharedFile& file) const;  // a program has opened it
  uint64_t calls() const noexcept { return calls_; }

 private:
  static constexpr uint32_t kHotPlaces = 4;
  struct Program {
    uint32_t number = 0;
    SharedFile* file = nullptr;
    uint64_t fh = 0;
    std::string doing{};         // empty: nothing
    uint32_t hot[kHotPlaces]{};  // units
  };

  void next(Program& program);
  void begin(Program& program);
  void done(Program& program);
  void interrupt_some(uint64_t unique);
  void open(Program& program);
  void write(Program& program);
  void read(Program& program);
  void read_units(Program& program, uint32_t first, uint32_t count);
  void fsync(Program& program);
  void close(Program& program);
  void cut(Program& program);
  void cut_now(Program& program);
  void cut_done(Program& program, uint32_t unit, bool is_durable);
  void punch(Program& program);
  uint64_t new_value(SharedFile& file, uint32_t first, uint32_t count);
  std::pair<uint32_t, uint32_t> some_units(Program& program);
  void fail(const Program& program, const std::string& what) const;

  Clockwork& clockwork_;
  Mount& mount_;
  std::vector<std::unique_ptr<SharedFile>>& files_;
  std::vector<Program> programs_;
  uint64_t last_value_ = 0;
  uint64_t last_fh_ = 0;
  uint64_t calls_ = 0;
  bool ending_ = false;
  uint32_t cuts_one_in_;
  Duration thinks_;
};

}  // namespace braidfs::world
