#include "rig.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>

namespace braidfs::client::rig {

namespace {

template <typename T>
void store(Bytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <typename T>
T fetch(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

constexpr int kPatience_ms = 20'000;  // a test that waits this long has failed

}  // namespace

Bytes attributes_record(uint64_t ino, uint64_t size, uint64_t change_version) {
  Bytes record(record::kBytes);
  store(record, 0, ino);
  store(record, 8, size);
  store(record, 80, change_version);
  store(record, 88, change_version);
  return record;
}

// A record of version 2.
Bytes replicated_record(const LayoutFields& fields) {
  const auto width = static_cast<uint16_t>(fields.rows.size() / fields.places);
  Bytes record(40 + 8 * fields.rows.size());
  store<uint8_t>(record, 0, 2);
  store(record, 1, static_cast<uint8_t>(fields.places));
  store(record, 2, width);
  store(record, 4, fields.chunk_size);
  store(record, 8, fields.file_id);
  store(record, 16, fields.epoch);
  store(record, 24, fields.durable_stripes);
  store<uint32_t>(record, 32, 9);  // generations were given out up to this one
  store<uint8_t>(record, 36, 2);
  for (size_t row = 0; row < fields.rows.size(); ++row) {
    store(record, 40 + 8 * row, fields.rows[row].target);
    store(record, 44 + 8 * row, generation_of(fields.rows[row].object_number));
  }
  return record;
}

Bytes layout_record(const LayoutFields& fields) {
  if (!fields.rows.empty()) return replicated_record(fields);
  const auto width = static_cast<uint16_t>(fields.targets);
  Bytes record(32 + 4 * width);
  store<uint8_t>(record, 0, 1);
  store<uint8_t>(record, 1, 1);
  store(record, 2, width);
  store(record, 4, fields.chunk_size);
  store(record, 8, fields.file_id);
  store(record, 16, fields.epoch);
  store(record, 24, fields.durable_stripes);
  for (uint32_t index = 0; index < width; ++index) store(record, 32 + 4 * index, 100 + index);
  return record;
}

Bytes capability_record(uint64_t file_id) {
  Bytes record(sizeof(Capability));
  store(record, 0, file_id);
  return record;
}

void FakeReplier::put(uint64_t unique, Reply reply) {
  const std::scoped_lock lock(mu_);
  if (replies_.contains(unique)) std::abort();  // answered twice
  replies_[unique] = std::move(reply);
  arrived_.notify_all();
}

void FakeReplier::reply_error(fuse::Channel, uint64_t unique, int error) noexcept {
  put(unique, {.error = error, .bytes = {}});
}

void FakeReplier::reply_data(fuse::Channel, uint64_t unique,
                             std::span<const iovec> pieces) noexcept {
  Reply reply;
  for (const iovec& piece : pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    reply.bytes.insert(reply.bytes.end(), bytes, bytes + piece.iov_len);
  }
  put(unique, std::move(reply));
}

void FakeReplier::reply_write(fuse::Channel, uint64_t unique, uint32_t count) noexcept {
  put(unique, {.count = count, .bytes = {}});
}

void FakeReplier::reply_open(fuse::Channel, uint64_t unique, uint64_t, bool keeps_pages) noexcept {
  put(unique, {.count = keeps_pages ? 1u : 0u, .bytes = {}});
}

bool FakeReplier::store_pages(uint64_t, std::span<const std::byte> bytes) noexcept {
  if (refuses_pages_) return false;
  const std::scoped_lock lock(mu_);
  stored_.emplace_back(bytes.begin(), bytes.end());
  return true;
}

std::vector<Bytes> FakeReplier::stored() {
  const std::scoped_lock lock(mu_);
  return stored_;
}

std::optional<Reply> FakeReplier::wait_for(uint64_t unique, int ms) {
  std::unique_lock lock(mu_);
  const bool there = arrived_.wait_for(lock, std::chrono::milliseconds(ms),
                                       [&] { return replies_.contains(unique); });
  if (!there) return std::nullopt;
  return replies_[unique];
}

Reply FakeReplier::wait(uint64_t unique) {
  const auto reply = wait_for(unique, kPatience_ms);
  return reply ? *reply : Reply{.error = -1, .bytes = {}};
}

Rig::Rig(RigSettings settings) : settings_(settings) {
  settings_.core.lane_count = settings.lanes;
  core = std::make_unique<Core>(settings_.core);
  core->replier(replier);
  std::string reason;
  if (!settings_.cache.directory.empty() && !core->use_cache(settings_.cache, reason)) {
    throw std::runtime_error(reason);
  }
  const uint32_t width = settings.targets / settings.replicas;
  for (uint32_t row = 0; settings.replicas > 1 && row < width * settings.replicas; ++row) {
    const uint32_t stripe = row / settings.replicas;
    rows_.push_back({100 + stripe + row % settings.replicas * width, stripe});
  }
  for (uint32_t target = 0; target < settings.targets; ++target) {
    targets.push_back(std::make_unique<FakeTarget>());
    core->target_put(100 + target, 10 + target);
    core->node_put(10 + target);
  }
  python_ = std::thread([this] { python(); });
  core->start();
}

Rig::~Rig() {
  core->stop(0);
  ending_ = true;
  python_.join();
  for (const auto& target : targets) target->stop();
}

void Rig::python() {
  while (!ending_) {
    pollfd readable{core->events_fd(), POLLIN, 0};
    (void)poll(&readable, 1, 10);
    for (Event& event : core->events().reap(64)) act(std::move(event));
    if (holding_commits_) continue;
    std::vector<Event> held;
    held.swap(held_commits_);
    for (Event& event : held) act(std::move(event));
  }
}

void Rig::act(Event event) {
  if (event.kind == EventKind::kConnect) {
    const auto node = static_cast<uint32_t>(event.a);
    const auto lane = static_cast<uint32_t>(event.b);
    int ends[2];
    if (!connecting_ || refused_ == static_cast<int64_t>(node - 10) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      core->connection_failed(lane, node);
      return;
    }
    targets[node - 10]->serve(net::UniqueFd(ends[0]));
    core->connection_put(lane, node, net::UniqueFd(ends[1]));
    return;
  }
  if (event.kind == EventKind::kCommit) {
    if (holding_commits_) {
      held_commits_.push_back(std::move(event));
      return;
    }
    const Event asked = event;
    note(std::move(event));  // first: who is answered by it may look at it at once
    commit(asked);
    return;
  }
  if (event.kind == EventKind::kDropReplicas && answers_drops_) drop(event);
  if (event.kind == EventKind::kReopen && settings_.replicas > 1 && answers_drops_)
    core->view_put(kIno, layout(), capability());
  note(std::move(event));
}

void Rig::note(Event event) {
  const std::scoped_lock lock(mu_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

void Rig::commit(const Event& event) {
  const auto size = static_cast<uint64_t>(event.a);
  const auto flags = fetch<uint32_t>(event.payload, 8);
  Committed committed{.size = size,
                      .flags = flags,
                      .durable = fetch<uint16_t>(event.payload, 12),
                      .stripes = fetch<uint64_t>(event.payload, 16),
                      .acknowledged = {}};
  for (uint16_t row = 0; row < fetch<uint16_t>(event.payload, 14); ++row) {
    committed.acknowledged.emplace_back(fetch<uint32_t>(event.payload, 24 + 12 * row),
                                        fetch<uint64_t>(event.payload, 28 + 12 * row));
  }
  {
    const std::scoped_lock lock(mu_);
    commits_.push_back(std::move(committed));
  }
  const Status once = refusal_once_.exchange(Status::kOk);
  const Status status = once != Status::kOk ? once : commit_status_.load();
  const bool ok = status == Status::kOk;
  if (ok && (flags & kCommitSize) != 0) recorded_size = std::max(recorded_size.load(), size);
  core->commit_done(event.token, status, ok ? attributes(recorded_size, 2) : Bytes{});
}

void Rig::put_rows(std::vector<Replica> rows, uint32_t epoch) {
  const std::scoped_lock lock(mu_);
  rows_ = std::move(rows);
  epoch_ = epoch;
}

void Rig::take_row(uint32_t target) {
  const std::scoped_lock lock(mu_);
  for (Replica& row : rows_) {
    if (row.target == target) row = {};
  }
}

// Never the last one of a stripe.
void Rig::drop(const Event& event) {
  for (size_t at = 12; at < event.payload.size(); at += 8) {
    const Replica dropped{fetch<uint32_t>(event.payload, at + 4),
                          fetch<uint32_t>(event.payload, at)};
    const std::scoped_lock lock(mu_);
    const auto row = std::ranges::find(rows_, dropped);
    if (row == rows_.end()) continue;
    const auto begin =
        rows_.begin() + (row - rows_.begin()) / settings_.replicas * settings_.replicas;
    const auto is_there = [](const Replica& one) { return one.target != 0; };
    if (std::count_if(begin, begin + settings_.replicas, is_there) > 1) *row = {};
  }
  core->view_put(kIno, layout(), capability());
}

std::vector<Event> Rig::events(EventKind kind) {
  const std::scoped_lock lock(mu_);
  std::vector<Event> found;
  for (const Event& event : events_) {
    if (event.kind == kind) found.push_back(event);
  }
  return found;
}

Event Rig::wait_event(EventKind kind) {
  std::unique_lock lock(mu_);
  Event found;
  changed_.wait_for(lock, std::chrono::milliseconds(kPatience_ms), [&] {
    for (const Event& event : events_) {
      if (event.kind != kind) continue;
      found = event;
      return true;
    }
    return false;
  });
  return found;
}

std::vector<Rig::Committed> Rig::commits() {
  const std::scoped_lock lock(mu_);
  return commits_;
}

Bytes Rig::attributes(uint64_t size, uint64_t change_version) const {
  return attributes_record(kIno, size, change_version);
}

Bytes Rig::layout(uint32_t epoch, uint64_t durable_stripes) {
  const std::scoped_lock lock(mu_);
  return layout_record({.file_id = file_id,
                        .targets = settings_.targets,
                        .chunk_size = settings_.chunk_size,
                        .epoch = std::max(epoch, epoch_),
                        .durable_stripes = durable_stripes | durable_stripes_,
                        .rows = rows_,
                        .places = settings_.replicas});
}

Bytes Rig::capability() const { return capability_record(file_id); }

void Rig::open(uint64_t fh, uint32_t flags, uint64_t size, uint64_t durable_stripes) {
  if (settings_.replicas > 1) durable_stripes_ = durable_stripes;
  recorded_size = std::max(recorded_size.load(), size);
  core->inode_put(attributes(size), layout(0, durable_stripes), capability());
  core->handle_put(fh, kIno, flags, false);
}

void Rig::on_lane(uint32_t lane, std::function<void(fuse::LaneContext&)> task) {
  std::promise<void> done;
  core->lane(lane).post([&](Lane& at) {
    fuse::LaneContext context{.index = at.index()};
    task(context);
    done.set_value();
  });
  done.get_future().wait();
}

uint64_t Rig::start_write(uint64_t fh, uint64_t offset, const Bytes& bytes, uint32_t flags) {
  const uint64_t unique = unique_ += 2;
  const uint32_t lane = next_lane_++ % core->lane_count();
  on_lane(lane, [&](fuse::LaneContext& context) {
    const auto receive_buffer =
        core->receive_buffer(context, bytes.size());  // where a FUSE lane reads it
    std::span<const std::byte> payload = bytes;
    if (!receive_buffer.empty()) {
      std::copy(bytes.begin(), bytes.end(), receive_buffer.begin());
      payload = receive_buffer.first(bytes.size());
    }
    core->write(context, {.head = {.channel = lane, .unique = unique},
                          .fh = fh,
                          .offset = offset,
                          .open_flags = flags,
                          .payload = payload});
  });
  return unique;
}

uint64_t Rig::start_read(uint64_t fh, uint64_t offset, uint32_t size) {
  const uint64_t unique = unique_ += 2;
  const uint32_t lane = next_lane_++ % core->lane_count();
  on_lane(lane, [&](fuse::LaneContext& context) {
    core->read(
        context,
        {.head = {.channel = lane, .unique = unique}, .fh = fh, .offset = offset, .size = size});
  });
  return unique;
}

void Rig::store_and_forget(const Bytes& content) {
  open(kFh, O_RDWR, 0);
  core->lease_until(Clock::now() + std::chrono::hours(1));
  core->inode_lease(kIno, kLeaseData | kLeaseDataExclusive, 0);
  write(kFh, 0, content);
  EXPECT_EQ(fsync(kFh), 0);
  release(kFh);
  core->inode_drop(kIno);
  EXPECT_TRUE(forgets_inodes());
}

uint64_t Rig::start_fetch(uint64_t fh) {
  const uint64_t unique = unique_ += 2;
  const uint32_t lane = next_lane_++ % core->lane_count();
  bool taken = false;
  on_lane(lane, [&](fuse::LaneContext& context) {
    taken = core->fetch_opened(context, {.channel = lane, .unique = unique, .nodeid = kIno}, fh);
  });
  return taken ? unique : 0;
}

uint64_t Rig::start_flush(uint64_t fh) {
  const uint64_t unique = unique_ += 2;
  on_lane(0, [&](fuse::LaneContext& context) {
    core->flush(context, {.head = {.unique = unique}, .fh = fh});
  });
  return unique;
}

uint64_t Rig::start_fsync(uint64_t fh) {
  const uint64_t unique = unique_ += 2;
  on_lane(0, [&](fuse::LaneContext& context) {
    core->fsync(context, {.head = {.unique = unique}, .fh = fh});
  });
  return unique;
}

uint64_t Rig::start_release(uint64_t fh) {
  const uint64_t unique = unique_ += 2;
  on_lane(0, [&](fuse::LaneContext& context) {
    core->release(context, {.head = {.unique = unique}, .fh = fh});
  });
  return unique;
}

Reply Rig::write(uint64_t fh, uint64_t offset, const Bytes& bytes, uint32_t flags) {
  return replier.wait(start_write(fh, offset, bytes, flags));
}
Reply Rig::read(uint64_t fh, uint64_t offset, uint32_t size) {
  return replier.wait(start_read(fh, offset, size));
}
int Rig::flush(uint64_t fh) { return replier.wait(start_flush(fh)).error; }
int Rig::fsync(uint64_t fh) { return replier.wait(start_fsync(fh)).error; }
int Rig::release(uint64_t fh) { return replier.wait(start_release(fh)).error; }

bool Rig::interrupt(uint64_t unique) { return core->interrupt(unique); }

int64_t Rig::drain(bool sync) {
  core->drain(1, kIno, sync, false);
  return wait_event(EventKind::kDone).a;
}

Bytes Rig::file(uint64_t size, bool durable) {
  Bytes bytes(size);
  const uint64_t chunk_size = settings_.chunk_size;
  for (uint64_t chunk = 0; chunk * chunk_size < size; ++chunk) {
    const auto stripe = static_cast<uint32_t>(chunk % settings_.targets);
    const Bytes object = durable ? targets[stripe]->durable_object(file_id, stripe)
                                 : targets[stripe]->object(file_id, stripe);
    const uint64_t from = chunk / settings_.targets * chunk_size;
    const uint64_t length = std::min(chunk_size, size - chunk * chunk_size);
    for (uint64_t at = 0; at < length && from + at < object.size(); ++at) {
      bytes[chunk * chunk_size + at] = object[from + at];
    }
  }
  return bytes;
}

}  // namespace braidfs::client::rig
