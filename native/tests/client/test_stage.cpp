#include "stage.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace braidfs::client::rig {

namespace {

CoreSettings core_settings(const Stage::Settings& settings) {
  CoreSettings core;
  core.lane_count = settings.lanes;
  core.gather_ms = 0;
  core.sync_after_ms = settings.sync_after_ms;
  return core;
}

// A frame's worth, taken from the beginning of `received`.
std::optional<Frame> next_frame(Bytes& received) {
  if (received.size() < kHeaderSize) return std::nullopt;
  Frame frame;
  frame.header = decode_header(std::span(received).first(kHeaderSize)).header;
  const size_t length = kHeaderSize + frame.header.body_length + frame.header.payload_length;
  if (received.size() < length) return std::nullopt;
  const auto body = received.begin() + kHeaderSize;
  const auto payload = body + frame.header.body_length;
  frame.body.assign(body, payload);
  frame.payload.assign(payload, payload + frame.header.payload_length);
  received.erase(received.begin(), received.begin() + static_cast<ptrdiff_t>(length));
  return frame;
}

}  // namespace

Stage::Stage(const Settings& settings)
    : settings_(settings),
      schedule_(settings.seed, settings.interrupted_one_in),
      targets_(settings.targets),
      core_(std::make_unique<Core>(core_settings(settings))),
      turns_(settings.lanes),
      in_turn_(settings.lanes) {
  core_->replier(*this);
  for (uint32_t target = 0; target < settings.targets; ++target) {
    core_->target_put(100 + target, 10 + target);
  }
  core_->inode_put(
      attributes_record(kIno, 0, change_version_),
      layout_record({.file_id = kIno, .targets = settings.targets, .chunk_size = kChunkSize}),
      capability_record(kIno));
  core_->handle_put(kFh, kIno, O_RDWR, false);
  for (uint32_t index = 0; index < settings.lanes; ++index) {
    fibers_.push_back(schedule_.add([this, index] {
      while (!ending_) {
        in_turn_[index] = true;
        core_->loop(index).turn(0);
        in_turn_[index] = false;
        ++turns_[index];
        Schedule::yield();
      }
    }));
  }
  python_ = schedule_.add([this] {
    while (!ending_) {
      if (call_) call_();
      call_ = nullptr;
      Schedule::yield();
    }
  });
}

Stage::~Stage() {
  ending_ = true;
  for (const size_t fiber : fibers_) schedule_.run_to_end(fiber);
  schedule_.run_to_end(python_);
  core_.reset();
}

void Stage::by_python(const std::function<void()>& call) {
  call_ = call;
  for (schedule_.run(python_); call_; schedule_.run(python_)) {
    for (const size_t fiber : fibers_) schedule_.run(fiber);
  }
}

bool Stage::run_turn(uint32_t lane) {
  constexpr int kPartsMax = 10'000;
  const uint64_t until = turns_[lane] + 2;
  for (int part = 0; part < kPartsMax && turns_[lane] < until; ++part) run(lane);
  return turns_[lane] == until;
}

void Stage::reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept {
  Bytes bytes;
  for (const iovec& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), from, from + piece.iov_len);
  }
  replied(unique, 0, std::move(bytes));
}

void Stage::write(uint32_t lane, uint64_t unique, uint64_t offset, Bytes bytes, uint32_t flags) {
  core_->lane(lane).post([=, this](Lane& at) {
    fuse::LaneContext context{.index = at.index()};
    core_->write(context, {.head = {.channel = lane, .unique = unique},
                           .fh = kFh,
                           .offset = offset,
                           .open_flags = flags,
                           .payload = bytes});
  });
}

void Stage::read(uint32_t lane, uint64_t unique, uint64_t offset, uint32_t size) {
  core_->lane(lane).post([=, this](Lane& at) {
    fuse::LaneContext context{.index = at.index()};
    core_->read(
        context,
        {.head = {.channel = lane, .unique = unique}, .fh = kFh, .offset = offset, .size = size});
  });
}

void Stage::fsync(uint32_t lane, uint64_t unique) {
  core_->lane(lane).post([=, this](Lane& at) {
    fuse::LaneContext context{.index = at.index()};
    core_->fsync(context, {.head = {.channel = lane, .unique = unique}, .fh = kFh});
  });
}

void Stage::resize(uint64_t size, uint32_t epoch) {
  size_ = size;
  by_python([&] {
    core_->inode_resize(attributes_record(kIno, size, ++change_version_), layout(epoch),
                        capability_record(file_id_));
  });
}

Bytes Stage::layout(uint32_t epoch) const {
  return layout_record({.file_id = file_id_,
                        .targets = settings_.targets,
                        .chunk_size = kChunkSize,
                        .epoch = epoch});
}

void Stage::cut_done(const Event& event, uint64_t size, uint32_t epoch, bool well) {
  if (well) size_ = size;
  by_python([&] {
    if (!well) return (void)core_->cut_done(kIno, event.token, Status::kEio, {}, {}, {});
    core_->cut_done(kIno, event.token, Status::kOk,
                    attributes_record(kIno, size, ++change_version_), layout(epoch),
                    capability_record(file_id_));
  });
}

Stage::Connection* Stage::connection(uint32_t target, uint32_t lane) {
  for (const auto& one : targets_[target].connections) {
    if (one->lane == lane) return one.get();
  }
  return nullptr;
}

bool Stage::serve(Target& target, Connection& connection) {
  Bytes part(64u << 10);
  const ssize_t count = recv(connection.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
  if (count > 0)
    connection.received.insert(connection.received.end(), part.begin(), part.begin() + count);
  const auto frame = next_frame(connection.received);
  if (!frame) return false;
  connection.replies.push_back(target.store.packed(frame->header, target.store.answer(*frame)));
  return true;
}

// A lane that does not go on may not have read what came before: the rest waits here, too.
bool Stage::deliver(Connection& connection) {
  if (connection.replies.empty()) return false;
  Bytes& reply = connection.replies.front();
  const ssize_t sent =
      ::send(connection.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno == EAGAIN) return false;
  if (sent >= 0 && static_cast<size_t>(sent) < reply.size()) {
    reply.erase(reply.begin(), reply.begin() + sent);
    return true;
  }
  connection.replies.pop_front();
  return true;
}

void Stage::python() {
  for (Event& event : core_->events().reap(64)) {
    if (event.kind == EventKind::kConnect) {
      connect(static_cast<uint32_t>(event.b), static_cast<uint32_t>(event.a));
    } else if (event.kind == EventKind::kCommit) {
      commits_.push_back(std::move(event));
    } else {
      told(std::move(event));
    }
  }
}

// The former connection's requests end first: here they are dropped (rule 23).
void Stage::connect(uint32_t lane, uint32_t node) {
  Target& target = targets_[node - 10];
  std::erase_if(target.connections, [&](const auto& one) { return one->lane == lane; });
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("no socket");
  target.connections.push_back(std::make_unique<Connection>());
  target.connections.back()->socket = net::UniqueFd(ends[0]);
  target.connections.back()->lane = lane;
  core_->connection_put(lane, node, net::UniqueFd(ends[1]));
}

bool Stage::answer_commit() {
  if (commits_.empty()) return false;
  const Event event = std::move(commits_.front());
  commits_.pop_front();
  uint32_t flags;
  std::memcpy(&flags, event.payload.data() + 8, sizeof(flags));
  if ((flags & kCommitSize) != 0) grow_to(static_cast<uint64_t>(event.a));
  core_->commit_done(event.token, Status::kOk, attributes_record(kIno, size_, ++change_version_));
  return true;
}

}  // namespace braidfs::client::rig
