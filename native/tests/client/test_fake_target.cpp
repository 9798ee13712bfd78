#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "rig.h"

namespace braidfs::client::rig {

namespace {

bool receive(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = recv(socket, bytes.data(), bytes.size(), 0);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

bool transmit(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

bool receive_frame(int socket, Frame& frame) {
  Bytes raw(kHeaderSize);
  if (!receive(socket, raw)) return false;
  const auto decoded = decode_header(raw);
  if (decoded.fault != FrameFault::kOk) return false;
  frame.header = decoded.header;
  frame.body.resize(frame.header.body_length);
  frame.payload.resize(frame.header.payload_length);
  return receive(socket, frame.body) && receive(socket, frame.payload);
}

bool sums_agree(const Frame& frame) {
  if (frame.body.size() < sizeof(Capability)) return false;
  const auto& header = frame.header;
  std::vector<uint64_t> sums((frame.body.size() - sizeof(Capability)) / 8);
  std::memcpy(sums.data(), frame.body.data() + sizeof(Capability), sums.size() * 8);
  return sums.size() == blocks_touched(header.offset, header.payload_length) &&
         !first_mismatch(header.offset, frame.payload, sums);
}

}  // namespace

bool eventually(const std::function<bool()>& is_true) {
  for (int tries = 0; tries < 2000 && !is_true(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_true();
}

Bytes pattern(size_t length, uint32_t seed) {
  Bytes bytes(length);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

void FakeTarget::serve(net::UniqueFd socket) {
  const std::scoped_lock lock(mu_);
  if (stopped_) return;
  auto shared = std::make_shared<net::UniqueFd>(std::move(socket));
  sockets_.push_back(shared);
  threads_.emplace_back([this, shared] { run(shared); });
}

void FakeTarget::decide(Decide decide) {
  const std::scoped_lock lock(mu_);
  decide_ = std::move(decide);
  stalling_ = true;
}

void FakeTarget::release_stalled() {
  const std::scoped_lock lock(mu_);
  stalling_ = false;
  decide_ = nullptr;
  changed_.notify_all();
}

void FakeTarget::hang_up() {
  const std::scoped_lock lock(mu_);
  for (const auto& socket : sockets_) shutdown(socket->get(), SHUT_RDWR);
}

void FakeTarget::lose_unsynced() {
  {
    const std::scoped_lock lock(mu_);
    store_.lose_unsynced();
  }
  hang_up();
}

void FakeTarget::stop() {
  {
    const std::scoped_lock lock(mu_);
    stopped_ = true;
    changed_.notify_all();
  }
  hang_up();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void FakeTarget::run(std::shared_ptr<net::UniqueFd> socket) {
  Frame frame;
  while (receive_frame(socket->get(), frame) && handle(socket->get(), frame)) {
  }
  shutdown(socket->get(), SHUT_RDWR);
}

bool FakeTarget::handle(int socket, const Frame& request) {
  Frame reply;
  Bytes packed;
  Decision decision;
  {
    std::unique_lock lock(mu_);
    seen_.push_back(request.header);
    if (decide_) decision = decide_(request.header);
    changed_.notify_all();
    if (decision.fault == Fault::kHangUpBefore) return false;
    if (decision.fault == Fault::kStall)
      changed_.wait(lock, [&] { return stopped_ || !stalling_; });
    if (decision.fault == Fault::kForget) return true;
    if (decision.fault == Fault::kStatus) {
      reply.header.status = static_cast<uint16_t>(decision.status);
    } else {
      reply = store_.answer(request);
    }
    const bool flips = decision.fault == Fault::kFlip && !reply.payload.empty();
    packed = store_.packed(request.header, std::move(reply));
    if (flips) packed[packed.size() - 1] ^= std::byte{1};
  }
  if (decision.fault == Fault::kHangUpAfter) return false;
  return transmit(socket, packed);
}

Bytes FakeStore::packed(const FrameHeader& request, Frame reply) const {
  reply.header.offset = incarnation;
  reply.header.op = request.op;
  reply.header.flags |= kFlagReply;
  reply.header.request_id = request.request_id;
  reply.header.body_length = static_cast<uint32_t>(reply.body.size());
  reply.header.payload_length = static_cast<uint32_t>(reply.payload.size());
  reply.header.body_checksum = reply.body.empty() ? 0 : xxh3(reply.body);
  seal(reply.header);
  Bytes all(kHeaderSize);
  std::memcpy(all.data(), &reply.header, kHeaderSize);
  all.insert(all.end(), reply.body.begin(), reply.body.end());
  all.insert(all.end(), reply.payload.begin(), reply.payload.end());
  return all;
}

Frame FakeStore::answer(const Frame& request) {
  Frame reply;
  Status status = Status::kOk;
  switch (static_cast<Op>(request.header.op)) {
    case Op::kRead: {
      reply.payload = read(request.header, status);
      std::vector<uint64_t> sums(
          blocks_touched(request.header.offset, static_cast<uint32_t>(reply.payload.size())));
      hash_blocks(request.header.offset, reply.payload, sums);
      const auto packed = std::as_bytes(std::span(sums));
      reply.body.assign(packed.begin(), packed.end());
      reply.header.flags = kFlagSums;
      break;
    }
    case Op::kWrite:
      write(request, status);
      break;
    case Op::kCopy:
      copy(request);
      break;
    case Op::kSync:
      sync(request.header, status);
      break;
    case Op::kSeek:
      reply.body = seek(request.header, status);
      break;
    case Op::kFetch: {
      const size_t known = fetched.size();
      fetched.resize(known + request.header.length);
      std::memcpy(&fetched[known], request.body.data(), request.body.size());
      break;
    }
    case Op::kPing:
      break;
    default:
      status = Status::kBadRequest;
  }
  reply.header.status = static_cast<uint16_t>(status);
  return reply;
}

// The source is another object here.
void FakeStore::copy(const Frame& request) {
  CopySource source;
  std::memcpy(&source, request.body.data() + sizeof(Capability), sizeof(source));
  Bytes bytes = objects[{source.file_id, source.stripe_index}];
  bytes.resize(source.offset + request.header.length);
  Bytes& object = objects[{request.header.file_id, request.header.stripe_index}];
  const size_t end = request.header.offset + request.header.length;
  if (object.size() < end) object.resize(end);
  std::copy(bytes.begin() + static_cast<ptrdiff_t>(source.offset), bytes.end(),
            object.begin() + static_cast<ptrdiff_t>(request.header.offset));
}

void FakeStore::write(const Frame& request, Status& status) {
  if (!sums_agree(request)) status = Status::kChecksum;
  const auto epoch = epochs.find({request.header.file_id, request.header.stripe_index});
  if (epoch != epochs.end() && request.header.epoch < epoch->second)
    status = Status::kStaleTruncateEpoch;
  if (status != Status::kOk) return;
  const std::pair id{request.header.file_id, request.header.stripe_index};
  if ((request.header.flags & kFlagMustExist) != 0 && !objects.contains(id)) {
    status = Status::kNoObject;
    return;
  }
  Bytes& object = objects[id];
  const size_t end = request.header.offset + request.payload.size();
  if (object.size() < end) object.resize(end);
  std::copy(request.payload.begin(), request.payload.end(),
            object.begin() + static_cast<ptrdiff_t>(request.header.offset));
}

Bytes FakeStore::read(const FrameHeader& header, Status& status) {
  const auto found = objects.find({header.file_id, header.stripe_index});
  if (found == objects.end()) {
    if ((header.flags & kFlagMustExist) != 0) status = Status::kNoObject;
    return {};
  }
  const Bytes& object = found->second;
  const size_t from = std::min<size_t>(header.offset, object.size());
  const size_t to = std::min<size_t>(header.offset + header.length, object.size());
  return {object.begin() + static_cast<ptrdiff_t>(from),
          object.begin() + static_cast<ptrdiff_t>(to)};
}

// The object is all data.
Bytes FakeStore::seek(const FrameHeader& header, Status& status) const {
  const auto found = objects.find({header.file_id, header.stripe_index});
  if (found == objects.end()) {
    status = Status::kNoObject;
    return {};
  }
  const uint64_t end = found->second.size();
  const bool finds_data = header.length == 0 && header.offset < end;
  const uint64_t at = header.length != 0 ? std::max(header.offset, end)
                      : finds_data       ? header.offset
                                         : ~uint64_t{0};
  const std::array<uint64_t, 2> answer{at, 1};
  const auto packed = std::as_bytes(std::span(answer));
  return {packed.begin(), packed.end()};
}

void FakeStore::sync(const FrameHeader& header, Status& status) {
  const Key key{header.file_id, header.stripe_index};
  const auto epoch = epochs.find(key);
  if (epoch != epochs.end() && header.epoch < epoch->second) {
    status = Status::kStaleTruncateEpoch;
  } else if (header.offset != 0 && header.offset < incarnation) {
    status = Status::kStaleIncarnation;
  } else if (objects.contains(key)) {
    durable[key] = objects[key];
  }
}

void FakeStore::truncate(const Key& key, size_t length, uint32_t epoch) {
  epochs[key] = epoch;
  if (!objects.contains(key)) return;
  Bytes& object = objects[key];
  object.resize(std::min(object.size(), length));
  durable[key] = object;
}

Bytes FakeTarget::object(uint64_t file_id, uint32_t stripe) {
  const std::scoped_lock lock(mu_);
  const auto found = store_.objects.find({file_id, stripe});  // to look makes none
  return found == store_.objects.end() ? Bytes{} : found->second;
}

Bytes FakeTarget::durable_object(uint64_t file_id, uint32_t stripe) {
  const std::scoped_lock lock(mu_);
  return store_.durable[{file_id, stripe}];
}

void FakeTarget::put_object(uint64_t file_id, uint32_t stripe, Bytes bytes) {
  const std::scoped_lock lock(mu_);
  store_.objects[{file_id, stripe}] = std::move(bytes);
}

void FakeTarget::raise_epoch(uint64_t file_id, uint32_t stripe, uint32_t epoch) {
  const std::scoped_lock lock(mu_);
  store_.epochs[{file_id, stripe}] = epoch;
}

std::vector<FetchedObject> FakeTarget::fetched() {
  const std::scoped_lock lock(mu_);
  return store_.fetched;
}

size_t FakeTarget::count(Op op) { return seen(op).size(); }

std::vector<FrameHeader> FakeTarget::seen(Op op) {
  const std::scoped_lock lock(mu_);
  std::vector<FrameHeader> headers;
  std::copy_if(seen_.begin(), seen_.end(), std::back_inserter(headers),
               [&](const FrameHeader& header) { return header.op == static_cast<uint8_t>(op); });
  return headers;
}

}  // namespace braidfs::client::rig
