// The Python of a client that holds files: opens and closes, leases, replicas, and what it does for
// the kernel (fsclient/fs, fsclient/leases).
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "braidfs/leases.h"
#include "mount.h"

namespace braidfs::world {

namespace {

constexpr Duration kCloses = milliseconds(100);
constexpr Duration kUses = milliseconds(1);
constexpr Duration kRepeats = seconds(8);
constexpr uint32_t kRepeatedOneIn = 12;
constexpr uint32_t kUnreported = 2;

}  // namespace

void Mount::see(uint64_t ino, const Records& records) {
  core_->inode_put(records.attributes, records.layout, records.capability);
  tell_lanes(ino);
}

void Mount::see_view(uint64_t ino, const Records& records) {
  core_->view_put(ino, records.layout, records.capability);
}

// A view that may come later than what was asked for after it, but not sooner than what was asked
// for before it.
void Mount::renew_view(uint64_t ino, Duration late) {
  tell([=, this] {
    metaserver_.open(session_, ino, files_[ino].is_writable,
                     [=, this](const std::optional<Records>& records) {
                       const Time now = VirtualTime::now();
                       const Duration rest = std::max(replied_at_, now) - now;
                       if (records) later(rest + late, [=, this] { see_view(ino, *records); });
                     });
  });
}

// ---- opening and closing ----

void Mount::open(uint64_t ino, uint64_t fh, int flags, std::function<void()> done) {
  hold(ino, flags, [=, this] {
    handles_[fh] = ino;
    core_->handle_put(fh, ino, static_cast<uint32_t>(flags), false);
    done();
  });
}

void Mount::hold(uint64_t ino, int flags, std::function<void()> done) {
  OpenFile& file = files_[ino];
  ++file.holds;
  file.is_closing = false;
  file.is_writable = file.is_writable || flags != O_RDONLY;
  tell([=, this, writable = file.is_writable] {
    metaserver_.open(session_, ino, writable, back<Records>([=, this](const Records& records) {
                       see(ino, records);
                       done();
                     }));
  });
}

void Mount::unhold(uint64_t ino) {
  OpenFile& file = files_[ino];
  if (--file.holds > 0) return;
  file.is_closing = true;
  core_->inode_drop(ino);
  later(clockwork_.chance.up_to(kCloses), [this, ino] { close(ino); });
}

bool Mount::is_closed(uint64_t ino) const {
  const auto found = files_.find(ino);
  return found == files_.end() || (found->second.holds == 0 && !found->second.is_closing);
}

void Mount::close(uint64_t ino) {
  OpenFile& file = files_[ino];
  if (!std::exchange(file.is_closing, false)) return;
  file.is_writable = false;
  const uint64_t serial = ++serial_;
  const bool is_unsynced = core_->closed_unsynced(ino);
  if (is_unsynced) file.closed = serial;
  if ((file.held & kLeaseDataExclusive) != 0) {
    file.held = kLeaseData;
    tell_lanes(ino);
  }
  tell([=, this] { metaserver_.close(session_, ino, is_unsynced, serial); });
}

// Lanes get a new capability. They sync a file later that was closed without a sync, and store what
// was written to it before it was opened for reading alone: `writable`.
void Mount::reopen(uint64_t ino, bool writable) {
  const OpenFile& file = files_[ino];
  const bool reads = file.holds > 0 && !file.is_writable && !writable;
  hold(ino, reads ? O_RDONLY : O_RDWR, [this, ino] { unhold(ino); });
}

void Mount::tell_synced(uint64_t ino) {
  OpenFile& file = files_[ino];
  if (!file.closed || core_->closed_unsynced(ino)) return;
  const uint64_t serial = *std::exchange(file.closed, std::nullopt);
  tell([=, this] {
    metaserver_.synced(session_, ino, serial);
    if (!clockwork_.chance.one_in(kRepeatedOneIn)) return;
    clockwork_.agenda.after(clockwork_.chance.up_to(kRepeats),
                            [=, this] { metaserver_.synced(session_, ino, serial); });
  });
}

// ---- replicas ----

void Mount::drop_replicas(const client::Event& event) {
  const uint64_t ino = event.ino;
  if (std::exchange(files_[ino].is_dropping, true)) return;
  Metaserver::Drop drop{.ino = ino};
  const char* from = event.payload.data();
  std::memcpy(&drop.file_id, from, 8);
  std::memcpy(&drop.epoch, from + 8, 4);
  for (size_t at = 12; at < event.payload.size(); at += 8) {
    Name name{.file_id = drop.file_id};
    std::memcpy(&name.number, from + at, 4);
    std::memcpy(&name.target, from + at + 4, 4);
    drop.names.push_back(name);
  }
  tell([=, this] {
    metaserver_.drop(session_, drop, back<Records>([=, this](const Records& records) {
                       files_[ino].is_dropping = false;
                       see_view(ino, records);
                     }));
    if (!clockwork_.chance.one_in(kRepeatedOneIn)) return;
    clockwork_.agenda.after(clockwork_.chance.up_to(kRepeats), [=, this] {
      metaserver_.drop(session_, drop, [=, this](const std::optional<Records>& records) {
        if (records) later(python_time(), [=, this] { see_view(ino, *records); });
      });
    });
  });
}

// ---- leases ----

uint64_t Mount::lease_number(uint64_t ino) const {
  const auto found = files_.find(ino);
  const bool is_held = found != files_.end() && (found->second.held & kLeaseData) != 0;
  return is_held && has_leases() ? found->second.number : 0;
}

bool Mount::gives_back(uint64_t ino) const {
  const auto found = files_.find(ino);
  return found != files_.end() && found->second.is_leaving;
}

bool Mount::tell_lanes(uint64_t ino) {
  const OpenFile& file = files_[ino];
  return core_->inode_lease(ino, file.held, file.recalling);
}

void Mount::when_stays(uint64_t ino, std::function<void()> then) {
  OpenFile& file = files_[ino];
  if (!file.is_leaving) return then();
  file.waiting.push_back(std::move(then));
}

// The caller has it in use until disown().
void Mount::acquire(uint64_t ino, bool exclusive, std::function<void()> then) {
  tell([=, this] {
    metaserver_.acquire(session_, ino, exclusive,
                        back<Metaserver::Grant>([=, this](const Metaserver::Grant& grant) {
                          OpenFile& file = files_[ino];
                          ++file.using_it;
                          file.number = grant.held.number;
                          file.held |= grant.held.flags;
                          see(ino, grant.records);
                          then();
                        }));
  });
}

void Mount::ask(uint64_t ino) {
  when_stays(ino, [this, ino] {
    acquire(ino, files_[ino].is_writable, [this, ino] {
      core_->inode_asked(ino, 0);
      later(clockwork_.chance.up_to(kUses), [this, ino] { disown(ino); });
    });
  });
}

void Mount::own(uint64_t ino, bool exclusive, std::function<void()> then) {
  when_stays(ino, [=, this] {
    OpenFile& file = files_[ino];
    const uint32_t needed = exclusive ? kLeaseDataExclusive : kLeaseData;
    if (!has_leases() || (file.held & needed) == 0) return acquire(ino, exclusive, then);
    ++file.using_it;
    then();
  });
}

void Mount::disown(uint64_t ino) {
  --files_[ino].using_it;
  look_at_recall(ino);
}

void Mount::recalled(uint64_t ino, Metaserver::Held what) {
  OpenFile& file = files_[ino];
  if (file.recall && file.recall->number == what.number) what.flags |= file.recall->flags;
  if (!file.recall || file.recall->number <= what.number) file.recall = what;
  look_at_recall(ino);
}

// A recall waits for the grant to which it refers, and until that was used once.
void Mount::look_at_recall(uint64_t ino) {
  OpenFile& file = files_[ino];
  if (!file.recall || file.recall->number > file.number || file.using_it > 0 || file.is_leaving)
    return;
  const Metaserver::Held what = *std::exchange(file.recall, std::nullopt);
  if (what.number == file.number) give_back(ino, what);
}

void Mount::give_back(uint64_t ino, Metaserver::Held what) {
  OpenFile& file = files_[ino];
  file.is_leaving = true;
  const uint32_t going = file.held & what.flags;
  file.held &= ~what.flags;
  file.recalling |= going;
  tell_lanes(ino);
  if ((going & kLeaseDataExclusive) == 0) {
    return later(python_time(), [=, this] {
      if (!end_recalling(ino, going)) return returned(ino, what);
      drain(ino, false, true, [=, this](int64_t) { returned(ino, what); });
    });
  }
  drain(ino, false, true, [=, this](int64_t) {
    const bool goes_on = end_recalling(ino, going);
    const bool is_open = files_[ino].holds > 0;
    if (!is_open && !(goes_on && (going & kLeaseData) != 0)) return returned(ino, what);
    drain(ino, false, true, [=, this](int64_t) {
      // Lanes gave up what they held.
      if (is_open) metaserver_.watcher->let_go(session_, ino);
      returned(ino, what);
    });
  });
}

// True: written bytes are still on their way, or reads and writes went on.
bool Mount::end_recalling(uint64_t ino, uint32_t flags) {
  OpenFile& file = files_[ino];
  file.recalling &= ~flags;
  const bool goes_on = tell_lanes(ino);
  if ((file.held & kLeaseData) != 0) {
    metaserver_.watcher->has_closed(session_, ino);
  } else {
    metaserver_.watcher->let_go(session_, ino);
  }
  return goes_on;
}

void Mount::returned(uint64_t ino, Metaserver::Held what) {
  close(ino);
  end_recalling(ino, 0);
  tell([=, this] { metaserver_.give_back(session_, ino, what); });
  OpenFile& file = files_[ino];
  file.is_leaving = false;
  for (const auto& then : std::exchange(file.waiting, {})) then();
  look_at_recall(ino);
}

// ---- for the kernel ----

// As fsclient/fs/files.py does it: what was written goes first, and what is not committed goes
// along.
void Mount::set_size(uint64_t ino, uint64_t size, Drained done) {
  own(ino, true, [=, this] {
    core_->pause_cuts(ino, true);
    set_own_size(ino, size, [=, this](int64_t error) {
      core_->pause_cuts(ino, false);
      disown(ino);
      done(error);
    });
  });
}

void Mount::set_own_size(uint64_t ino, uint64_t size, const Drained& done) {
  drain(ino, false, false,
        [=, this](int64_t error) { error == 0 ? set_size_drained(ino, size, done) : done(error); });
}

void Mount::set_size_drained(uint64_t ino, uint64_t size, const Drained& done) {
  uint64_t reach = 0;
  if (const auto written = core_->inode_take(ino)) reach = written->size;
  const auto ask = [=, this](int64_t) {
    tell([=, this] {
      metaserver_.set_size(
          session_, ino, size, reach, back<Records>([=, this](const Records& records) {
            core_->inode_resize(records.attributes, records.layout, records.capability);
            tell_lanes(ino);
            done(0);
          }));
    });
  };
  if (!core_->inode_commits(ino)) return ask(0);
  drain(ino, false, true, ask);  // a commit with an older size is under way
}

// As fsclient/fs/extents.py does it: held bytes must not be sent again later.
void Mount::punch(uint64_t ino, uint64_t begin, uint64_t end, Drained done) {
  own(ino, true, [=, this] {
    const auto state = static_cast<uint32_t>(core_->pause_cuts(ino, true));
    const auto finish = [=, this](int64_t error) {
      core_->pause_cuts(ino, false);
      disown(ino);
      done(error);
    };
    if (state != kUnreported) return punch_owned(ino, begin, end, finish);
    drain(ino, false, false, [=, this](int64_t error) {
      error == 0 ? punch_owned(ino, begin, end, finish) : finish(error);
    });
  });
}

void Mount::punch_owned(uint64_t ino, uint64_t begin, uint64_t end, const Drained& done) {
  drain(ino, true, true, [=, this](int64_t error) {
    if (error != 0) return done(error);
    drains_.emplace(++token_, [done](int64_t failed, int64_t) { done(failed); });
    if (!core_->punch(token_, ino, begin, end)) throw std::logic_error("PUNCH was not begun");
  });
}

void Mount::seek(uint64_t ino, uint64_t from, bool hole, Sought done) {
  own(ino, false, [=, this] {
    drain(ino, false, false, [=, this](int64_t error) {
      const auto finish = [=, this](int64_t failed, int64_t at) {
        disown(ino);
        done(failed, at);
      };
      if (error != 0) return finish(error, 0);
      drains_.emplace(++token_, finish);
      if (!core_->seek(token_, ino, from, hole)) throw std::logic_error("SEEK was not begun");
    });
  });
}

}  // namespace braidfs::world
