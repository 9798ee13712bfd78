#include "client/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "client/context.h"
#include "client/lane.h"
#include "client/outcomes.h"
#include "rdma/rdma_stream.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kConnectBackoffMin = milliseconds(50);
constexpr auto kConnectBackoffMax = milliseconds(2000);

// A send buffer for some pieces: the lane need not wait until the server reads each part.
constexpr int kLocalSendBuffer = 4 << 20;

FrameHeader header_of(const Call& call) {
  FrameHeader header;
  header.op = static_cast<uint8_t>(call.op);
  header.flags = call.op == Op::kFetch ? 0 : kFlagCapability;
  header.request_id = call.request_id;
  header.file_id = call.view->file_id;
  header.stripe_index = call.replica.object_number;
  header.target = call.replica.target;
  header.offset = call.offset;
  header.length = call.length;
  header.epoch = call.view->truncate_epoch;
  if (call.op == Op::kWrite) header.flags |= kFlagSums;
  const bool tells_lost = call.op == Op::kRead || changes(call.op);
  // A replica without the object says so: another one may have it.
  const bool asks_others = call.op == Op::kRead && call.view->is_mirrored(call.stripe_index);
  if (asks_others || (tells_lost && must_exist(*call.view, call.stripe_index)))
    header.flags |= kFlagMustExist;
  if (call.op == Op::kRead && !call.distrusts) header.flags |= kFlagRaw;
  return header;
}

// The source of a COPY and its capability, from the newest view of the file; from the view at the
// start if the file has other objects by now.
std::array<std::byte, sizeof(CopySource) + sizeof(Capability)> source_of(const Call& call) {
  FileViewPtr view = call.source->view();
  if (view->file_id != call.source_view->file_id) view = call.source_view;
  const Replica& replica = view->first_replica(call.source_stripe);
  const CopySource source{.file_id = view->file_id,
                          .offset = call.source_offset,
                          .stripe_index = replica.object_number,
                          .target = replica.target,
                          .flags = must_exist(*view, call.source_stripe) ? kCopyMustExist : 0,
                          .epoch_end = view->truncate_epoch + 1};
  std::array<std::byte, sizeof(CopySource) + sizeof(Capability)> raw;
  std::memcpy(raw.data(), &source, sizeof(source));
  std::memcpy(raw.data() + sizeof(source), view->capability.data(), sizeof(Capability));
  return raw;
}

bool is_local_socket(const net::Socket& socket) noexcept {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

// Takes the two numbers of the answer to a SEEK. False: they are not a valid answer.
bool take_seek(Call& call, std::span<const std::byte> body) {
  uint64_t ended;
  if (body.size() != sizeof(call.seek_at) + sizeof(ended)) return false;
  std::memcpy(&call.seek_at, body.data(), sizeof(call.seek_at));
  std::memcpy(&ended, body.data() + sizeof(call.seek_at), sizeof(ended));
  call.seek_ended = ended != 0;
  return call.seek_ended ? call.seek_at >= call.offset : call.seek_at > call.offset;
}

// Links of one client do not retry together.
uint32_t seed_of(Lane& lane, uint32_t node) {
  const uint64_t seed = lane.context().settings().seed;
  if (seed == 0) return std::random_device{}();
  return static_cast<uint32_t>(seed * 31 + lane.index() * 1009 + node);
}

// Whether the reply to this operation must name the incarnation of the target that carried it out.
bool tells_incarnation(Op op) {
  return op == Op::kWrite || op == Op::kSync || op == Op::kPunch || op == Op::kCopy;
}

}  // namespace

Link::Link(Lane& lane, uint32_t node)
    : lane_(lane), node_(node), slots_(kSlotCount, nullptr), chance_(seed_of(lane, node)) {
  free_.reserve(kSlotCount);
  for (uint32_t slot = kSlotCount; slot > 0; --slot) free_.push_back(slot - 1);
}

Link::~Link() = default;

void Link::submit(Call* call) {
  if (call->once && !connected()) {
    ask_for_connection(lane_.loop().now());
    return lane_.unreachable(call);
  }
  if (call->op == Op::kWrite && !may_gather(*call)) gathering_ = false;
  (call->op == Op::kWrite ? writes_ : reads_).push_back(call);
  if (!connected()) {
    Lane::note_missing(*call, missing_since(lane_.loop().now()));
    return ask_for_connection(lane_.loop().now());
  }
  pump();
}

void Link::ask_for_connection(Clock::time_point now) {
  if (asked_ || now < ask_again_) return;
  asked_ = true;
  asked_at_ = now;
  lane_.context().missing_servers().attempt_begins(node_, now);
  lane_.ask_for_connection(node_);
}

void Link::attempt_ended() {
  if (std::exchange(asked_, false)) lane_.context().missing_servers().attempt_ends(node_);
}

Clock::time_point Link::missing_since(Clock::time_point since) {
  const auto known = lane_.context().missing_servers().since(node_, lane_.loop().now());
  return known ? std::min(*known, since) : since;
}

void Link::adopt(net::Socket socket, std::shared_ptr<rdma::Channel> channel) {
  if (stream_) requeue_unanswered();
  if (is_local_socket(socket) && !std::exchange(is_local_, true)) lane_.is_near(node_);
  attempt_ended();
  stream_.reset();  // lent memory comes back before the next stream begins
  stream_ = rdma::open_stream(lane_.loop(), std::move(socket), std::move(channel), *this,
                              {.local_send_buffer = kLocalSendBuffer});
  if (const int error = stream_->start(); error != 0) {
    stream_.reset();
    return connect_failed();
  }
  answered_ = false;
  heard();
  pump();
}

void Link::connect_failed() {
  const auto now = lane_.loop().now();
  lane_.context().missing_servers().failed(node_, asked_ ? asked_at_ : now, now);
  attempt_ended();
  const auto backoff = kConnectBackoffMin * (1u << std::min(failures_, 10u));
  const auto most = std::min<Clock::duration>(backoff, kConnectBackoffMax);
  // The time is random, from half of the backoff on, so clients that lost a server together do not
  // return together.
  ask_again_ = now + most / 2 + most / 2 * (chance_() % 1024) / 1024;
  ++failures_;
}

void Link::pump() {
  if (!pump_queue(reads_)) return;
  if (gathers()) return;
  if (pump_queue(writes_)) gathering_ = writes_.empty();
}

bool Link::gathers() {
  if (!gathering_ || writes_.empty() || writes_.size() >= kGatherMax) return false;
  const auto now = lane_.loop().now();
  if (now >= gather_until_) {
    gather_until_ = now + milliseconds(lane_.context().settings().gather_ms);
    return false;
  }
  lane_.gathers();
  if (!gather_timer_) {
    gather_timer_ = true;
    lane_.loop().call_at(gather_until_, [this] {
      gather_timer_ = false;
      pump();
    });
  }
  return true;
}

void Link::hurry() {
  gathering_ = false;
  pump();
}

// False: the connection takes no more now.
bool Link::pump_queue(std::deque<Call*>& queue) {
  while (!queue.empty() && connected()) {
    Call* call = queue.front();
    if (free_.empty()) return false;
    if (!may_send(*call)) return true;
    if (!send(call)) return false;
    queue.pop_front();
  }
  return connected();
}

bool Link::may_send(const Call& call) const noexcept {
  return call.op != Op::kWrite || write_bytes_ == 0 ||
         write_bytes_ + call.payload.size() <= kWriteBytesMax;
}

bool Link::may_gather(const Call& call) const noexcept {
  return call.behind && call.payload.size() <= kGatherBytesMax;
}

bool Link::send(Call* call) {
  call->request_id = rounds_ * kSlotCount + free_.back();
  net::OutFrame frame;
  frame.header = header_of(*call);
  frame.body =
      call->op == Op::kFetch ? call->names : std::span<const std::byte>(call->view->capability);
  frame.payload = call->payload;
  if (call->op == Op::kRead) frame.reply_length_max = call->length;
  std::array<std::byte, sizeof(CopySource) + sizeof(Capability)> source;
  if (call->op == Op::kCopy) {
    source = source_of(*call);
    frame.body_tail = source;
  }
  if (call->op == Op::kWrite) {
    if (call->sums.empty()) {
      sums_.resize(blocks_touched(call->offset, call->length));
      hash_blocks(call->offset, call->payload, sums_);
    }
    frame.body_tail =
        std::as_bytes(call->sums.empty() ? std::span<const uint64_t>(sums_) : call->sums);
    frame.keep = call->owner;
    frame.lends = true;
  }
  if (!stream_->send(std::move(frame))) {
    call->request_id = 0;
    return false;
  }
  ++rounds_;
  slots_[call->request_id % kSlotCount] = call;
  free_.pop_back();
  if (in_flight_++ == 0) heard();
  write_bytes_ += call->payload.size();
  call->sent = lane_.loop().now();
  ++call->attempts;
  return true;
}

Call* Link::find(const FrameHeader& header) noexcept {
  Call* call = slots_[header.request_id % kSlotCount];
  if (call == nullptr || call->request_id != header.request_id) return nullptr;
  const bool matches =
      (header.flags & kFlagReply) != 0 && header.op == static_cast<uint8_t>(call->op);
  return matches ? call : nullptr;
}

Call* Link::take(uint64_t request_id) noexcept {
  const auto slot = static_cast<uint32_t>(request_id % kSlotCount);
  Call* call = std::exchange(slots_[slot], nullptr);
  free_.push_back(slot);
  --in_flight_;
  if (call->is_abandoned) --abandoned_;
  write_bytes_ -= call->payload.size();
  call->request_id = 0;
  return call;
}

net::PayloadPlace Link::payload_buffer(const FrameHeader& header, std::span<const std::byte> body) {
  const Call* call = find(header);
  if (call == nullptr || call->op != Op::kRead || header.payload_length > call->length) {
    return {net::Verdict::kRefuse, {}};
  }
  const size_t sums = size_t{8} * blocks_touched(call->offset, header.payload_length);
  if (body.size() != sums || (header.flags & kFlagSums) == 0) return {net::Verdict::kRefuse, {}};
  if (call->is_abandoned) {
    lane_.finished(take(header.request_id));
    heard();
    return {net::Verdict::kDiscard, {}};
  }
  arriving_ = header.request_id;
  return {net::Verdict::kTake, call->place.first(header.payload_length)};
}

bool Link::frame(const FrameHeader& header, std::span<const std::byte> body,
                 std::span<std::byte> payload) {
  if (header.request_id == kPingId && header.op == static_cast<uint8_t>(Op::kPing) && pinged_) {
    lane_.context().missing_servers().found(node_);
    heard();
    return true;
  }
  Call* call = find(header);
  if (call == nullptr) return false;
  auto status = static_cast<Status>(header.status);
  if (call->op == Op::kSeek && status == Status::kOk && !take_seek(*call, body)) return false;
  if (status == Status::kOk && header.offset == 0 && tells_incarnation(call->op)) return false;
  take(header.request_id);
  arriving_ = 0;
  if (call->op == Op::kWrite) write_answered_ = lane_.loop().now();
  failures_ = 0;
  if (!std::exchange(answered_, true)) lane_.context().missing_servers().found(node_);
  heard();
  if (status == Status::kOk && !payload.empty()) {
    const std::span sums(reinterpret_cast<const uint64_t*>(body.data()), body.size() / 8);
    call->distrusts = first_mismatch(call->offset, payload, sums).has_value();
    if (call->distrusts) status = Status::kChecksum;
  }
  call->received = static_cast<uint32_t>(payload.size());
  call->incarnation = header.offset;
  lane_.answered(call, status);
  pump();
  return true;
}

void Link::sendable() { pump(); }

void Link::closed(int error, const std::string& reason) {
  // This is usual if nothing is under way, since a server has many clients and closes unused
  // connections. It is also usual when the mount ends: the connections end then, even with calls
  // under way that nobody waits for.
  const bool is_usual = (in_flight_ == 0 && waiting() == 0) || lane_.context().is_stopping();
  lane_.log(is_usual ? LogLevel::kDebug : LogLevel::kWarning,
            "connection to node " + std::to_string(node_) + " ended: " + reason +
                (error == 0 ? "" : std::string(" (") + std::strerror(error) + ")"));
  ++lane_.counters().connections_lost;
  const auto now = lane_.loop().now();
  if (pinged_) lane_.context().missing_servers().failed(node_, silent_since_, now);
  requeue_unanswered();
  stream_.reset();
  if (!answered_) connect_failed();  // a server that refuses the session closes at once
  if (waiting() > 0) ask_for_connection(now);
}

void Link::requeue_unanswered() {
  gathering_ = false;
  std::vector<Call*> unanswered;
  for (Call* call : slots_) {
    if (call != nullptr) unanswered.push_back(call);
  }
  std::sort(unanswered.begin(), unanswered.end(),
            [](const Call* a, const Call* b) { return a->request_id > b->request_id; });
  for (Call* call : unanswered) {  // the newest comes first, and each goes to the front
    take(call->request_id);
    if (call->failed_early) {
      lane_.finished(call);
    } else if (call->once) {
      lane_.unreachable(call);
    } else {
      (call->op == Op::kWrite ? writes_ : reads_).push_front(call);
    }
  }
  const auto since = missing_since(pinged_ ? silent_since_ : lane_.loop().now());
  for (const auto* const queue : {&reads_, &writes_})
    for (Call* const call : *queue)
      Lane::note_missing(*call, since);  // those that had not left, too
}

void Link::cut(const std::string& reason) {
  if (stream_) stream_->cut(ETIMEDOUT, reason);
}

void Link::tick(Clock::time_point now) {
  expire(reads_, now);
  expire(writes_, now);
  bool expired = false;
  for (Call* call : slots_) {
    if (call == nullptr || now < call->deadline) continue;
    if (call->failed_early && !call->is_abandoned) continue;
    call->failed_early = expired = true;
    call->status = Status::kEio;
  }
  if (connected() && expired) return cut("a request passed its deadline");
  if (connected() && in_flight_ > 0) watch_silence(now);
  look_at_bound(now);
  look_at_reads(now);
  if (stream_ == nullptr && waiting() > 0) ask_for_connection(now);
}

// Ends calls to replicas that were dropped, and has replicas dropped whose calls wait for too long.
void Link::look_at_bound(Clock::time_point now) {
  const milliseconds unanswered{lane_.context().settings().unanswered_ms_max};
  const milliseconds unreached{lane_.context().settings().unreached_ms_max};
  for (std::deque<Call*>* const queue : {&reads_, &writes_}) {
    std::vector<Call*> over;
    std::erase_if(*queue, [&](Call* call) {
      if (!call->is_bound || now < call->look_at) return false;
      const bool is_late = connected() ? now - std::max(call->issued, write_answered_) >= unanswered
                                       : now - call->missing_since >= unreached;
      if (!is_late || !lane_.gives_up(*call)) return false;
      over.push_back(call);
      return true;
    });
    for (Call* const call : over) {
      call->status = Status::kStaleTruncateEpoch;
      lane_.finished(call);
    }
  }
  for (Call* const call : slots_) {
    if (call == nullptr || !call->is_bound || now < call->look_at) continue;
    if (now - call->sent < unanswered || !lane_.gives_up(*call)) continue;
    abandon(call, call->owner, Status::kStaleTruncateEpoch);
  }
}

// Has another replica asked where this server, though it is there, does not answer a read: its disk
// may hang.
void Link::look_at_reads(Clock::time_point now) {
  const milliseconds unanswered{lane_.context().settings().read_unanswered_ms_max};
  for (Call* const call : slots_) {
    if (call == nullptr || call->failed_early || call->tries.asked == 0) continue;
    if (now - call->sent < unanswered || call->request_id == arriving_) continue;
    abandon(call, nullptr, Status::kEio);
  }
}

// Ends a call whose answer may still come. What it lends to the connection, `lent`, stays until
// then. (A read lends nothing before its answer begins to arrive.)
void Link::abandon(Call* call, std::shared_ptr<CallOwner> lent, Status status) {
  struct Leftover final : CallOwner {
    explicit Leftover(std::shared_ptr<CallOwner> of) : owner(std::move(of)) {}
    void call_done(Lane&, Call&) override {}
    const std::shared_ptr<CallOwner> owner;
  };
  Call* const left = lane_.make_call();
  *left = *call;
  left->deadline = lent ? lane_.deadline_after(lane_.loop().now()) : Clock::time_point::max();
  left->owner = std::make_shared<Leftover>(std::move(lent));
  left->place = {};
  left->is_bound = false;
  left->failed_early = left->is_abandoned = true;
  slots_[call->request_id % kSlotCount] = left;
  ++abandoned_;
  call->request_id = 0;
  call->status = status;
  lane_.finished(call);
}

void Link::watch_silence(Clock::time_point now) {
  const milliseconds patience{lane_.context().settings().silence_ms_max};
  const bool is_missing = now - missing_since(now) >= patience;
  const milliseconds silence_max = patience / (is_missing ? 10 : suspected_ ? 3 : 1);
  const auto silence = now - silent_since_;
  if (silence > silence_max) return cut("no answer for too long");
  if (silence > silence_max / 5 && !pinged_) ping();
  if (silence > silence_max * 3 / 10) ask_for_connection(now);
}

void Link::ping() {
  net::OutFrame frame;
  frame.header.op = static_cast<uint8_t>(Op::kPing);
  frame.header.request_id = kPingId;
  pinged_ = stream_->send(std::move(frame));
}

void Link::heard() noexcept {
  silent_since_ = lane_.loop().now();
  pinged_ = false;
}

void Link::suspect(bool on) {
  const bool was = std::exchange(suspected_, on);
  if (on && !was && connected() && in_flight_ > 0 && !pinged_) ping();
  if (on || !was) return;
  lane_.context().missing_servers().found(node_);
  if (connected()) return;
  ask_again_ = {};  // the node is up again, so there is no backoff
  failures_ = 0;
  if (waiting() > 0) ask_for_connection(lane_.loop().now());
}

void Link::expire(std::deque<Call*>& queue, Clock::time_point now) {
  std::vector<Call*> due;
  std::erase_if(queue, [&](Call* call) {
    if (now < call->deadline) return false;
    due.push_back(call);
    return true;
  });
  for (Call* call : due) {
    call->status = Status::kEio;
    lane_.finished(call);
  }
}

void Link::fail_queue(std::deque<Call*>& queue, Status status) {
  // The loop ends although an operation may submit more calls: each has a failed call less to wait
  // for.
  while (!queue.empty()) {
    Call* call = queue.front();
    queue.pop_front();
    call->status = status;
    lane_.finished(call);
  }
}

void Link::fail_all(Status status) {
  for (Call* call : slots_) {
    if (call == nullptr || call->failed_early) continue;
    call->failed_early = true;
    call->status = status;
  }
  fail_queue(reads_, status);
  fail_queue(writes_, status);
  if (in_flight_ > 0) cut("requests were aborted");
}

}  // namespace braidfs::client
