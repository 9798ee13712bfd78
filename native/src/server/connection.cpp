#include "server/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/rdma_stream.h"
#include "server/lane.h"
#include "server/services.h"

namespace braidfs::server {

namespace {

using Life = SessionState::Life;

// After reading was stopped, one turn may still take in as many small frames as the kernel holds;
// their bytes are bounded by the lane's buffers. With these bounds the stream never refuses a
// reply.
constexpr uint32_t kFramesQueuedMax = 32u << 10;
constexpr size_t kBytesQueuedMax = size_t{1} << 40;
constexpr size_t kPartOfFree = 4;  // of the lane's free memory, for one connection
constexpr uint32_t kBodyLengthMax =
    sizeof(Capability) + 8 * (limits::kFramePayloadLengthMax / limits::kBlockSize + 1);

FrameHeader reply_header(const FrameHeader& request, Status status) {
  FrameHeader header;
  header.op = request.op;
  header.flags = kFlagReply;
  header.request_id = request.request_id;
  header.file_id = request.file_id;
  header.stripe_index = request.stripe_index;
  header.target = request.target;
  header.status = static_cast<uint16_t>(status);
  return header;
}

}  // namespace

Request::~Request() {
  drop_buffer();
  connection->request_dropped();
}

void Request::take_buffer(Buffer taken) {
  buffer = std::move(taken);
  connection->count_held(buffer.size());
}

void Request::drop_buffer() {
  if (!buffer) return;
  connection->count_released(buffer.size());
  buffer.reset();
}

Connection::Connection(Lane& lane, Adoption adoption)
    : lane_(lane),
      purpose_(adoption.purpose),
      session_(adoption.session),
      id_(adoption.connection),
      state_(lane.services().sessions.connection_added(adoption.session)),
      capabilities_(lane.services().capability_key),
      socket_(std::move(adoption.socket)),
      channel_(std::move(adoption.channel)),
      progress_at_(lane.loop().now()) {}

Connection::~Connection() = default;

void Connection::begin(bool wait_for_predecessor) {
  predecessor_pending_ = wait_for_predecessor;
  if (wait_for_predecessor) return;
  phase_ = Phase::kServing;
  stream_ = rdma::open_stream(lane_.loop(), std::move(socket_), std::move(channel_), *this,
                              {.body_length_max = kBodyLengthMax,
                               .payload_length_max = limits::kFramePayloadLengthMax,
                               .frames_queued_max = kFramesQueuedMax,
                               .bytes_queued_max = kBytesQueuedMax});
  if (const int error = stream_->start(); error != 0) close(-error, "cannot watch the socket");
  if (state_->life() == Life::kFenced) close(0, "the session was fenced");
}

void Connection::predecessor_ended() {
  if (!std::exchange(predecessor_pending_, false)) return;
  if (phase_ == Phase::kWaiting) begin(false);
  end_if_idle();
}

void Connection::replaced_by(std::shared_ptr<Connection> successor) {
  successors_.push_back(std::move(successor));
  close(0, "replaced by a newer connection");
}

void Connection::close(int error, std::string reason) {
  if (closing()) return;
  if (stream_) {
    stream_->cut(error, std::move(reason));
    return;
  }
  closed(error, reason);
}

void Connection::closed(int error, const std::string& reason) {
  if (closing()) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosing;
  if (error != 0) lane_.report_cut(*this, error, reason);
  arriving_.reset();
  std::exchange(held_back_, {}).clear();
  stream_.reset();
  socket_.reset();
  if (channel_) channel_->port().drop(std::exchange(channel_, nullptr));
  lane_.forget_waiting(*this);
  end_if_idle();
}

void Connection::end_if_idle() {
  if (phase_ != Phase::kClosing || in_flight_ > 0 || predecessor_pending_) return;
  phase_ = Phase::kEnded;
  const auto self = shared_from_this();
  lane_.connection_ended(*this);
  for (const auto& successor : std::exchange(successors_, {})) successor->predecessor_ended();
}

Status Connection::check_capability(const FrameHeader& header, std::span<const std::byte> body) {
  const OpSpec& spec = *spec_of(header.op);
  if (!spec.capability || purpose_ == Purpose::kServer) return Status::kOk;
  const RequestBody parts = body_of(header, body);
  if (!parts.capability) return Status::kBadCapability;
  const bool writes = (spec.rights & kRightWrite) != 0;
  Status status = capabilities_.check(
      *parts.capability,
      {header.file_id, header.stripe_index, header.target, writes ? header.epoch : 0}, session_,
      spec.rights);
  if (status == Status::kOk && spec.source) {
    const CopySource& source = *parts.source;
    status = capabilities_.check(*parts.source_capability,
                                 {source.file_id, source.stripe_index, source.target}, session_,
                                 kRightRead);
  }
  if (status != Status::kOk) add(lane_.counters().refused_capabilities);
  return status;
}

Status Connection::check_dropped(const FrameHeader& header, std::span<const std::byte> body) {
  const OpSpec& spec = *spec_of(header.op);
  if (!spec.undropped) return Status::kOk;
  TargetTable& targets = lane_.services().targets;
  bool dropped =
      targets.entry_of(header.target)->dropped.has({header.file_id, header.stripe_index});
  if (spec.source && !dropped) {
    const CopySource source = *body_of(header, body).source;
    dropped = targets.entry_of(source.target)->dropped.has({source.file_id, source.stripe_index});
  }
  return dropped ? Status::kDropped : Status::kOk;
}

// Checks what must hold before anything is done for the peer. PING needs only a connection; FENCE
// and DROP_NAMES may come before there is a session table.
Status Connection::admit(const FrameHeader& header, std::span<const std::byte> body) {
  const auto op = static_cast<Op>(header.op);
  if (op == Op::kPing || op == Op::kFence) return Status::kOk;
  Services& services = lane_.services();
  if (!services.sessions.ready() && op != Op::kDropNames) return Status::kNotReady;
  if (purpose_ == Purpose::kData) {
    if (!services.sessions.is_leased()) return Status::kNotReady;
    if (state_->life() == Life::kFenced) return Status::kFenced;
    if (state_->life() != Life::kLive) return Status::kUnknownSession;
  }
  if (services.targets.find(header.target) == nullptr) return Status::kNoTarget;
  const bool has_names = op == Op::kDeleteAll || op == Op::kDropNames;
  if (has_names && names_of(body).empty()) return Status::kBadRequest;
  if (spec_of(header.op)->source) {
    const CopySource source = *body_of(header, body).source;
    if (!source_fits(header, source)) return Status::kBadRequest;
    if (services.targets.find(source.target) == nullptr) return Status::kNoTarget;
  }
  const Status status = check_capability(header, body);
  return status == Status::kOk ? check_dropped(header, body) : status;
}

void Connection::send_status(const FrameHeader& header, Status status) {
  if (stream_) (void)stream_->send({.header = reply_header(header, status)});
}

void Connection::refuse(const FrameHeader& header, Status status) {
  add(lane_.counters().refused_requests);
  send_status(header, status);
}

// False: the peer broke the protocol. It gets an error here, and the caller cuts the connection.
bool Connection::well_formed(const FrameHeader& header) {
  const Status status = shape(header, purpose_);
  if (status == Status::kOk) return true;
  add(lane_.counters().refused_frames);
  send_status(header, status);
  stream_->flush();
  return false;
}

net::PayloadPlace Connection::payload_buffer(const FrameHeader& header,
                                             std::span<const std::byte> body) {
  if (!stream_->is_open() || !well_formed(header)) return {.verdict = net::Verdict::kRefuse};
  if (const Status status = admit(header, body); status != Status::kOk) {
    refuse(header, status);
    return {.verdict = net::Verdict::kDiscard};
  }
  const size_t skew = header.offset % limits::kBlockSize;
  if (!may_hold(skew + header.payload_length)) {
    waits_for_own_ = true;
    return {.verdict = net::Verdict::kPause};
  }
  Buffer buffer = lane_.take_buffer(skew + header.payload_length);
  if (!buffer) {
    lane_.wait_for_memory(shared_from_this());
    return {.verdict = net::Verdict::kPause};
  }
  arriving_ = accept(header);
  arriving_->take_buffer(std::move(buffer));
  arriving_->payload = {arriving_->buffer.data() + skew, header.payload_length};
  arriving_->sums.resize(blocks_touched(header.offset, header.length));
  const auto sums = body_of(header, body).sums;
  std::memcpy(arriving_->sums.data(), sums.data(), sums.size());
  return {.verdict = net::Verdict::kTake, .bytes = arriving_->payload};
}

std::shared_ptr<Request> Connection::accept(const FrameHeader& header) {
  ++in_flight_;
  add(lane_.counters().in_flight);
  limit_reading();
  auto request = std::make_shared<Request>(shared_from_this(), header);
  request->may_lend = stream_->takes_pages();
  return request;
}

bool Connection::frame(const FrameHeader& header, std::span<const std::byte> body,
                       std::span<std::byte>) {
  if (!stream_->is_open()) return false;
  if (arriving_) {
    lane_.execute(std::move(arriving_));
    return true;
  }
  if (!well_formed(header)) return false;
  const Status status = admit(header, body);
  if (status == Status::kOk && header.op == static_cast<uint8_t>(Op::kFetch)) {
    fetch(header, body);
  } else if (status == Status::kOk && header.op == static_cast<uint8_t>(Op::kDropNames)) {
    drop_names(header, body);
  } else if (status == Status::kOk) {
    auto request = accept(header);
    if (spec_of(header.op)->source) request->source = *body_of(header, body).source;
    if (header.op == static_cast<uint8_t>(Op::kDeleteAll)) request->objects = names_of(body);
    lane_.execute(std::move(request));
  } else {
    refuse(header, status);
  }
  return true;
}

// Answered at once: the metaserver keeps a client waiting until no request for these names is
// admitted any more.
void Connection::drop_names(const FrameHeader& header, std::span<const std::byte> body) {
  add(lane_.counters().name_drops);
  const std::vector<store::ObjectId> names = names_of(body);
  const bool is_taken = lane_.services().targets.entry_of(header.target)->dropped.drop(names);
  send_status(header, is_taken ? Status::kOk : Status::kBusy);
}

// Answers as soon as the fetcher knows the objects: no peer waits for the bytes. Objects that this
// peer may not read are left out, and those whose names were dropped.
void Connection::fetch(const FrameHeader& header, std::span<const std::byte> body) {
  const std::vector<FetchedObject> objects = fetched_of(body);
  if (objects.empty()) return refuse(header, Status::kBadRequest);
  add(lane_.counters().fetches);
  std::vector<Fetcher::Wanted> wanted;
  const DroppedNames& dropped = lane_.services().targets.entry_of(header.target)->dropped;
  for (const FetchedObject& object : objects) {
    if (dropped.has({object.capability.file_id, object.stripe_index})) continue;
    const bool may_read =
        purpose_ == Purpose::kServer ||
        capabilities_.proves(object.capability,
                             {object.capability.file_id, object.stripe_index, header.target},
                             session_, kRightRead);
    if (!may_read) {
      add(lane_.counters().refused_capabilities);
      continue;
    }
    wanted.push_back(
        {{object.capability.file_id, object.stripe_index}, header.target, object.length});
  }
  const bool is_taken = lane_.services().fetcher.want(wanted, lane_.loop().now());
  send_status(header, is_taken ? Status::kOk : Status::kBusy);
}

void Connection::reply(std::shared_ptr<Request> request) {
  if (phase_ != Phase::kServing) return;
  const Request& done = *request;
  FrameHeader header = reply_header(done.header, done.status);
  header.offset = done.incarnation;
  net::OutFrame out{.header = header};
  if (done.status == Status::kOk) {
    if (static_cast<Op>(header.op) == Op::kRead) {
      out.header.flags |= kFlagSums;
      out.header.length = done.payload_length();
      if (purpose_ == Purpose::kServer && done.clients != nullptr)
        out.header.epoch = done.clients->was_within(kClientsPresent, lane_.loop().now()) ? 1 : 0;
      out.body = std::as_bytes(std::span(done.sums));
      out.files = done.lent.parts;
      out.payload = done.payload;
    } else {
      out.body = done.body;
    }
  }
  out.keep = std::move(request);
  if (stream_->frames_queued() == 0) progress_at_ = lane_.loop().now();
  if (!stream_->send(std::move(out)) && stream_->is_open()) {
    close(ENOBUFS, "replies do not drain");
  }
}

bool Connection::may_hold(size_t bytes) const {
  return held_bytes_ == 0 || held_bytes_ + bytes <= lane_.bytes_free() / kPartOfFree;
}

void Connection::hold_back(std::shared_ptr<Request> request) {
  held_back_.push_back(std::move(request));
  limit_reading();
}

void Connection::run_held_back() {
  while (!held_back_.empty() && may_hold(lane_.bytes_of(*held_back_.front()))) {
    auto request = std::move(held_back_.front());
    held_back_.pop_front();
    lane_.execute(std::move(request));
  }
  if (std::exchange(waits_for_own_, false)) resume();
}

void Connection::resume() {
  if (stream_) stream_->resume();
}

// Called by the request's destructor, perhaps from inside the stream: it only counts and defers.
void Connection::request_dropped() {
  --in_flight_;
  subtract(lane_.counters().in_flight);
  progress_at_ = lane_.loop().now();
  lane_.memory_returned();
  const bool may_read = !receiving_ && in_flight_ <= kInFlightMax / 2;
  if (may_read || waits_for_own_ || !held_back_.empty() ||
      (phase_ == Phase::kClosing && in_flight_ == 0))
    schedule_advance();
}

void Connection::schedule_advance() {
  if (std::exchange(advance_scheduled_, true)) return;
  lane_.loop().defer([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->advance();
  });
}

void Connection::advance() {
  advance_scheduled_ = false;
  if (phase_ == Phase::kServing) run_held_back();
  limit_reading();
  end_if_idle();
}

void Connection::limit_reading() {
  if (!stream_ || phase_ != Phase::kServing) return;
  const bool wanted = in_flight_ < kInFlightMax && held_back_.empty();
  if (wanted == receiving_) return;
  receiving_ = wanted;
  stream_->receive(wanted);
}

bool Connection::stalled_since(net::Clock::time_point when) const {
  if (!stream_ || phase_ != Phase::kServing) return false;
  if (arriving_ && stream_->received_at() < when) return true;
  return stream_->frames_queued() > 0 && progress_at_ < when;
}

std::optional<net::Clock::time_point> Connection::idle_since() const {
  if (purpose_ != Purpose::kData || phase_ != Phase::kServing || !stream_) return std::nullopt;
  if (in_flight_ > 0 || arriving_ || stream_->frames_queued() > 0) return std::nullopt;
  return std::max(progress_at_, stream_->received_at());
}

}  // namespace braidfs::server
