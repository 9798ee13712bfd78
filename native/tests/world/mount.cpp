#include "mount.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "braidfs/leases.h"

namespace braidfs::world {

namespace {

using client::Event;

constexpr size_t kEventsMax = 64;
constexpr Duration kHandshake = milliseconds(2);
constexpr Duration kUnreachable = seconds(2);
constexpr uint32_t kLostHandshakeOneIn = 25;

}  // namespace

Mount::Mount(Clockwork& clockwork, Network& network, Metaserver& metaserver,
             std::vector<std::unique_ptr<StorageHost>>& hosts, const MountSettings& settings)
    : clockwork_(clockwork),
      network_(network),
      metaserver_(metaserver),
      hosts_(hosts),
      settings_(settings),
      core_(std::make_unique<client::Core>(settings.core)) {
  core_->replier(*this);
  for (const auto& host : hosts_) {
    core_->node_put(host->number());
    for (const uint32_t target : host->targets()) core_->target_put(target, host->number());
  }
  core_->lease_until(VirtualTime::now() + std::chrono::hours(24));
}

// The core answers what waits with an error: nobody hears of it.
Mount::~Mount() { core_.reset(); }

void Mount::open(uint64_t ino, uint64_t fh) {
  core_->inode_put(metaserver_.attributes(ino), metaserver_.layout(ino),
                   metaserver_.capability(ino, settings_.session));
  core_->inode_lease(ino, kLeaseData | kLeaseDataExclusive, 0);
  core_->handle_put(fh, ino, O_RDWR, false);
}

// ---- the kernel ----

uint64_t Mount::on_lane(Done done, Task task) {
  const uint64_t unique = unique_ += 2;
  waiting_.emplace(unique, std::move(done));
  const uint32_t lane = clockwork_.chance.pick(lane_count());
  core_->lane(lane).post([lane, unique, task = std::move(task)](client::Lane&) {
    fuse::LaneContext context{.index = lane};
    task(context, {.channel = lane, .unique = unique});
  });
  return unique;
}

void Mount::write(const Place& place, Bytes bytes, uint32_t open_flags, Done done) {
  auto shared = std::make_shared<Bytes>(std::move(bytes));
  on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    // Where a FUSE lane reads it.
    const auto buffer = core_->receive_buffer(at, shared->size());
    std::span<const std::byte> payload = *shared;
    if (!buffer.empty()) {
      std::copy(shared->begin(), shared->end(), buffer.begin());
      payload = buffer.first(shared->size());
    }
    core_->write(at, {.head = head,
                      .fh = place.fh,
                      .offset = place.offset,
                      .open_flags = open_flags,
                      .payload = payload});
  });
}

uint64_t Mount::read(const Place& place, uint32_t size, Done done) {
  return on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    core_->read(at, {.head = head, .fh = place.fh, .offset = place.offset, .size = size});
  });
}

uint64_t Mount::fsync(const Place& place, Done done) {
  return on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    core_->fsync(at, {.head = head, .fh = place.fh});
  });
}

void Mount::flush(const Place& place, Done done) {
  on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    core_->flush(at, {.head = head, .fh = place.fh});
  });
}

void Mount::release(const Place& place, Done done) {
  on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    core_->release(at, {.head = head, .fh = place.fh});
  });
}

void Mount::cut(const Place& place, uint64_t size, Done done) {
  on_lane(std::move(done), [=, this](fuse::LaneContext& at, const fuse::RequestHead& head) {
    const bool is_cut =
        core_->cut(at, {.ino = place.ino, .fh = place.fh, .size = size, .time_ns = 1});
    replied(head.unique, is_cut ? 0 : EAGAIN, {});
  });
}

void Mount::reply_error(fuse::Channel, uint64_t unique, int error) noexcept {
  replied(unique, error, {});
}

void Mount::reply_write(fuse::Channel, uint64_t unique, uint32_t) noexcept {
  replied(unique, 0, {});
}

void Mount::reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept {
  Bytes bytes;
  for (const iovec& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), from, from + piece.iov_len);
  }
  replied(unique, 0, std::move(bytes));
}

// The program goes on a little later: not within the core.
void Mount::replied(uint64_t unique, int error, Bytes bytes) {
  const auto found = waiting_.extract(unique);
  if (found.empty()) {
    return clockwork_.agenda.after({}, [] { throw std::logic_error("it was answered twice"); });
  }
  clockwork_.agenda.after(microseconds(5), [done = std::move(found.mapped()), error,
                                            bytes = std::move(bytes)] { done(error, bytes); });
}

// ---- Python ----

Duration Mount::python_time() { return clockwork_.chance.up_to(milliseconds(1)); }

Duration Mount::metaserver_time() {
  const Time now = VirtualTime::now();
  const Duration slow = slow_until_ > now && !clockwork_.calm ? slow_until_ - now : Duration{};
  return slow + clockwork_.chance.up_to(milliseconds(3));
}

void Mount::take_events() {
  for (const Event& event : core_->events().reap(kEventsMax)) act(event);
}

void Mount::act(const Event& event) {
  const uint64_t ino = event.ino;
  switch (event.kind) {
    case EventKind::kConnect:
      return connect(static_cast<uint32_t>(event.b), static_cast<uint32_t>(event.a));
    case EventKind::kCommit:
      return clockwork_.agenda.after(metaserver_time(), [this, event] { commit(event); });
    case EventKind::kCut:
      return clockwork_.agenda.after(metaserver_time(), [this, event] { report_cut(event); });
    case EventKind::kReopen:
      return clockwork_.agenda.after(metaserver_time(), [this, ino] { renew_view(ino); });
    case EventKind::kAsk:
      return clockwork_.agenda.after(metaserver_time(), [this, ino] {
        renew_view(ino);
        core_->inode_lease(ino, kLeaseData | kLeaseDataExclusive, 0);
        core_->inode_asked(ino, 0);
      });
    case EventKind::kDone: {
      const auto found = drains_.extract(event.token);
      if (found.empty()) return;
      return clockwork_.agenda.after(
          python_time(), [done = std::move(found.mapped()), error = event.a] { done(error); });
    }
    case EventKind::kLog:
      return clockwork_.trace.note("log %lld: %s", static_cast<long long>(event.a),
                                   event.payload.c_str());
    default:
      return;
  }
}

void Mount::renew_view(uint64_t ino) {
  core_->view_put(ino, metaserver_.layout(ino), metaserver_.capability(ino, settings_.session));
}

void Mount::commit(const Event& event) {
  Metaserver::Commit commit{.size = static_cast<uint64_t>(event.a)};
  std::memcpy(&commit.file_id, event.payload.data(), 8);
  std::memcpy(&commit.flags, event.payload.data() + 8, 4);
  std::memcpy(&commit.stripes, event.payload.data() + 16, 8);
  clockwork_.trace.note("commit size %llu flags %u", static_cast<unsigned long long>(commit.size),
                        commit.flags);
  metaserver_.commit(event.ino, commit);
  core_->commit_done(event.token, Status::kOk, metaserver_.attributes(event.ino));
}

void Mount::report_cut(const Event& event) {
  uint64_t reach = 0;
  std::memcpy(&reach, event.payload.data(), sizeof(reach));
  metaserver_.set_size(event.ino, static_cast<uint64_t>(event.a), reach,
                       [this, ino = event.ino, number = event.token] {
                         core_->cut_done(ino, number, Status::kOk, metaserver_.attributes(ino),
                                         metaserver_.layout(ino),
                                         metaserver_.capability(ino, settings_.session));
                       });
}

void Mount::drain(uint64_t ino, bool sync, bool commit, Drained done) {
  drains_.emplace(++token_, std::move(done));
  core_->drain(token_, ino, sync, commit);
}

// As fsclient/fs/files.py does it: what was written goes first, and what is not committed goes
// along.
void Mount::set_size(uint64_t ino, uint64_t size, Drained done) {
  core_->pause_cuts(ino, true);
  drain(ino, false, false, [=, this](int64_t error) {
    if (error == 0) return set_size_drained(ino, size, done);
    core_->pause_cuts(ino, false);
    done(error);
  });
}

void Mount::set_size_drained(uint64_t ino, uint64_t size, const Drained& done) {
  uint64_t reach = 0;
  if (const auto written = core_->inode_take(ino)) reach = written->size;
  const auto tell = [=, this](int64_t) {
    clockwork_.agenda.after(metaserver_time(), [=, this] {
      metaserver_.set_size(ino, size, reach, [=, this] {
        core_->inode_resize(metaserver_.attributes(ino), metaserver_.layout(ino),
                            metaserver_.capability(ino, settings_.session));
        core_->pause_cuts(ino, false);
        done(0);
      });
    });
  };
  if (!core_->inode_commits(ino)) return tell(0);
  drain(ino, false, true, tell);  // a commit with an older size is under way
}

// As fsclient/fs/extents.py does it: held bytes must not be sent again later.
void Mount::punch(uint64_t ino, uint64_t begin, uint64_t end, Drained done) {
  drain(ino, true, true, [=, this](int64_t error) {
    if (error != 0) return done(error);
    drains_.emplace(++token_, done);
    if (!core_->punch(token_, ino, begin, end)) throw std::logic_error("PUNCH was not begun");
  });
}

// ---- connections (fsclient/data_connections.py) ----

void Mount::connect(uint32_t lane, uint32_t node) {
  if (!wanted_.emplace(lane, node).second) return;
  const Duration takes = clockwork_.chance.up_to(kHandshake);
  clockwork_.agenda.after(takes, [=, this] {
    StorageHost& host = *hosts_[node];
    const uint64_t former = settings_.names_former ? former_[{lane, node}] : 0;
    const uint64_t connection = ++connections_;
    const std::string name = "c" + std::to_string(settings_.session) + "." + std::to_string(lane) +
                             "-" + std::to_string(node) + "#" + std::to_string(connection);
    auto wire = network_.connect(name, node, settings_.tampering);
    const bool is_adopted = host.adopt({.socket = wire->plug_in(Side::kServer),
                                        .session = settings_.session,
                                        .connection = connection,
                                        .previous = former});
    const bool is_lost = !clockwork_.calm && clockwork_.chance.one_in(kLostHandshakeOneIn);
    if (is_adopted && !is_lost) {
      return clockwork_.agenda.after(clockwork_.chance.up_to(kHandshake),
                                     [=, this] { connected(lane, node, wire, connection); });
    }
    const Time late = VirtualTime::now() + clockwork_.chance.up_to(kUnreachable);
    wire->cut(VirtualTime::now(), late);
    clockwork_.agenda.at(late, [=, this] {
      wanted_.erase({lane, node});
      core_->connection_failed(lane, node);
    });
  });
}

void Mount::connected(uint32_t lane, uint32_t node, const std::shared_ptr<Wire>& wire,
                      uint64_t connection) {
  wanted_.erase({lane, node});
  former_[{lane, node}] = connection;
  clockwork_.trace.note("%s is connected", wire->name().c_str());
  core_->connection_put(lane, node, wire->plug_in(Side::kClient));
}

}  // namespace braidfs::world
