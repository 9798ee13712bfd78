#include "mount.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace braidfs::world {

namespace {

using client::Event;

constexpr size_t kEventsMax = 64;
constexpr Duration kHandshake = milliseconds(2);
constexpr Duration kUnreachable = seconds(2);
constexpr Duration kLease = seconds(6);
constexpr Duration kRenewal = seconds(1);
constexpr uint32_t kLostHandshakeOneIn = 25;

}  // namespace

Mount::Mount(Clockwork& clockwork, Network& network, Metaserver& metaserver,
             std::vector<std::unique_ptr<StorageHost>>& hosts, const MountSettings& settings)
    : clockwork_(clockwork),
      network_(network),
      metaserver_(metaserver),
      hosts_(hosts),
      settings_(settings),
      session_(metaserver.open_session()),
      core_(std::make_unique<client::Core>(settings.core)) {
  core_->replier(*this);
  for (const auto& host : hosts_) {
    core_->node_put(host->number());
    for (const uint32_t target : host->targets()) core_->target_put(target, host->number());
  }
  core_->lease_until(VirtualTime::now());
  renew();
}

// The core answers what waits with an error: nobody hears of it.
Mount::~Mount() { core_.reset(); }

void Mount::kill(bool loses_power) {
  clockwork_.trace.note("session %llx %s", static_cast<unsigned long long>(session_),
                        loses_power ? "loses power" : "is killed");
  for (const auto& wire : network_.wires()) {
    if (wire->client() != session_) continue;
    wire->go_dead(Side::kClient);  // its end may come, later
    if (!loses_power) wire->cut(VirtualTime::now(), VirtualTime::now() + python_time());
  }
  core_.reset();
  waiting_.clear();
  drains_.clear();
}

void Mount::stand_still(Duration time) {
  standing_until_ = std::max(standing_until_, VirtualTime::now() + time);
  clockwork_.trace.note("session %llx stands still", static_cast<unsigned long long>(session_));
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
    return clockwork_.agenda.after({}, [this] {
      if (is_alive()) throw std::logic_error("it was answered twice");
    });
  }
  later(microseconds(5), [done = std::move(found.mapped()), error, bytes = std::move(bytes)] {
    done(error, bytes);
  });
}

// ---- Python ----

void Mount::later(Duration rest, std::function<void()> then) {
  clockwork_.agenda.after(rest, [this, then = std::move(then)] {
    if (!is_alive()) return;
    is_standing() ? later(standing_until_ - VirtualTime::now(), then) : then();
  });
}

Duration Mount::python_time() { return clockwork_.chance.up_to(milliseconds(1)); }

Duration Mount::metaserver_time() {
  const Time now = VirtualTime::now();
  const Time from = std::max(slow_until_, cut_off_until_);
  const Duration slow = from > now && !clockwork_.calm ? from - now : Duration{};
  return slow + clockwork_.chance.up_to(milliseconds(3));
}

void Mount::tell(std::function<void()> at_metaserver) {
  told_at_ = std::max(told_at_, VirtualTime::now() + metaserver_time());
  clockwork_.agenda.at(told_at_, std::move(at_metaserver));
}

void Mount::reply(std::function<void()> here) {
  replied_at_ = std::max(replied_at_, VirtualTime::now() + metaserver_time());
  later(replied_at_ - VirtualTime::now(), std::move(here));
}

// Its leases count from when it asked.
void Mount::renew() {
  const Time sent = VirtualTime::now();
  tell([this, sent] {
    const bool is_live = metaserver_.renew(session_);
    reply([=, this] {
      if (!is_live) return lost();
      leased_until_ = std::max(leased_until_, sent + kLease);
      core_->lease_until(leased_until_);
    });
  });
  later(kRenewal, [this] { renew(); });
}

void Mount::take_events() {
  if (!is_alive() || is_standing()) return;
  for (const Event& event : core_->events().reap(kEventsMax)) act(event);
}

void Mount::act(const Event& event) {
  const uint64_t ino = event.ino;
  switch (event.kind) {
    case EventKind::kConnect:
      return connect(static_cast<uint32_t>(event.b), static_cast<uint32_t>(event.a));
    case EventKind::kCommit:
      return commit(event);
    case EventKind::kCut:
      return report_cut(event);
    case EventKind::kReopen:
      return later(python_time(), [this, ino, writable = event.a != 0] { reopen(ino, writable); });
    case EventKind::kAsk:
      return later(python_time(), [this, ino] { ask(ino); });
    case EventKind::kDropReplicas:
      return later(python_time(), [this, event] { drop_replicas(event); });
    case EventKind::kSynced:
      return later(python_time(), [this, ino] { tell_synced(ino); });
    case EventKind::kRelease: {
      const auto released = handles_.extract(static_cast<uint64_t>(event.a));
      if (!released.empty()) unhold(released.mapped());
      return;
    }
    case EventKind::kDone: {
      const auto found = drains_.extract(event.token);
      if (found.empty()) return;
      return later(python_time(), [done = std::move(found.mapped()), error = event.a,
                                   at = event.b] { done(error, at); });
    }
    case EventKind::kLog:
      return clockwork_.trace.note("log %lld: %s", static_cast<long long>(event.a),
                                   event.payload.c_str());
    default:
      return;
  }
}

void Mount::commit(const Event& event) {
  Metaserver::Commit commit{.size = static_cast<uint64_t>(event.a)};
  uint16_t count = 0;
  const char* from = event.payload.data();
  std::memcpy(&commit.file_id, from, 8);
  std::memcpy(&commit.flags, from + 8, 4);
  std::memcpy(&count, from + 14, 2);
  std::memcpy(&commit.stripes, from + 16, 8);
  for (uint16_t row = 0; row < count; ++row) {
    std::pair<uint32_t, uint64_t> one;
    std::memcpy(&one.first, from + 24 + size_t{12} * row, 4);
    std::memcpy(&one.second, from + 28 + size_t{12} * row, 8);
    commit.acknowledged.push_back(one);
  }
  clockwork_.trace.note("session %llx commits file %llu: size %llu flags %u",
                        static_cast<unsigned long long>(session_),
                        static_cast<unsigned long long>(event.ino),
                        static_cast<unsigned long long>(commit.size), commit.flags);
  tell([=, this, ino = event.ino, token = event.token] {
    metaserver_.commit(session_, ino, commit,
                       back<Metaserver::Committed>([=, this](const Metaserver::Committed& answer) {
                         core_->commit_done(token, answer.status, answer.attributes);
                       }));
  });
}

void Mount::report_cut(const Event& event) {
  uint64_t reach = 0;
  std::memcpy(&reach, event.payload.data(), sizeof(reach));
  tell([=, this, ino = event.ino, number = event.token, size = static_cast<uint64_t>(event.a)] {
    metaserver_.set_size(session_, ino, size, reach,
                         back<Records>([=, this](const Records& records) {
                           core_->cut_done(ino, number, Status::kOk, records.attributes,
                                           records.layout, records.capability);
                         }));
  });
}

void Mount::drain(uint64_t ino, bool sync, bool commit, Drained done) {
  drains_.emplace(++token_, [done = std::move(done)](int64_t error, int64_t) { done(error); });
  core_->drain(token_, ino, sync, commit);
}

// ---- connections (fsclient/data_connections.py) ----

void Mount::connect(uint32_t lane, uint32_t node) {
  if (!wanted_.emplace(lane, node).second) return;
  later(clockwork_.chance.up_to(kHandshake), [=, this] { handshake(lane, node); });
}

void Mount::handshake(uint32_t lane, uint32_t node) {
  const uint64_t former = settings_.names_former ? former_[{lane, node}] : 0;
  const uint64_t connection = ++connections_;
  const std::string name = "c" + std::to_string(session_) + "." + std::to_string(lane) + "-" +
                           std::to_string(node) + "#" + std::to_string(connection);
  auto wire = network_.connect(name, node, settings_.tampering, session_);
  const bool is_adopted = hosts_[node]->adopt({.socket = wire->plug_in(Side::kServer),
                                               .session = session_,
                                               .connection = connection,
                                               .previous = former});
  const bool is_lost = !clockwork_.calm && clockwork_.chance.one_in(kLostHandshakeOneIn);
  if (is_adopted && !is_lost) {
    return later(clockwork_.chance.up_to(kHandshake),
                 [=, this] { connected(lane, node, wire, connection); });
  }
  const Duration late = clockwork_.chance.up_to(kUnreachable);
  wire->cut(VirtualTime::now(), VirtualTime::now() + late);
  later(late, [=, this] {
    wanted_.erase({lane, node});
    core_->connection_failed(lane, node);
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
