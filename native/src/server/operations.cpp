#include "server/operations.h"

#include <cstring>
#include <utility>

#include "server/connection.h"
#include "server/copy.h"
#include "server/lane.h"

namespace braidfs::server {

namespace {

using store::Wait;

// A buffered write of this size costs the lane about as much as handing it to a worker.
constexpr uint32_t kInlineWriteMax = 256u << 10;

store::ReadRequest read_request(const Request& request) {
  const uint64_t offset = request.header.offset;
  const size_t room = store::read_buffer_bytes(offset, request.header.length);
  return {.object = request.object(),
          .offset = offset,
          .length = request.header.length,
          .buffer = {request.buffer.data(), room},
          .raw = (request.header.flags & kFlagRaw) != 0};
}

// True for an object that was synced once (rule 19): if it is missing, it was lost. Then nobody
// reads zeros in its place, and no request creates it again, because what else it held would be
// zeros.
bool must_exist(const Request& request) { return (request.header.flags & kFlagMustExist) != 0; }

store::WriteRequest write_request(const Request& request) {
  return {.object = request.object(),
          .epoch = request.header.epoch,
          .offset = request.header.offset,
          .payload = request.payload,
          .sums = request.sums,
          .must_exist = must_exist(request)};
}

void make_room_for_sums(Request& request) {
  request.sums.resize(blocks_touched(request.header.offset, request.header.length));
}

// A missing object is a hole, unless it must exist.
Status absent_or(const Request& request, Status status) {
  return status == Status::kNoObject && !must_exist(request) ? Status::kOk : status;
}

void take_result(Request& request, const store::ReadResult& result) {
  request.status = absent_or(request, result.status);
  const bool bytes = result.status == Status::kOk;
  request.sums.resize(bytes ? result.sum_count : 0);
  request.payload = {};
  if (!bytes) return;
  request.payload = {request.buffer.data() + request.header.offset % limits::kBlockSize,
                     result.length};
}

// For a READ that has begun. True: its bytes are sent out of the page cache as they are.
bool lend(Request& request, Counters& counters) {
  if (!request.may_lend) return false;
  make_room_for_sums(request);
  const store::ReadResult result =
      request.store->lend_read(request.reading, request.sums, request.lent);
  if (result.status == Status::kEagain) return false;
  request.reading = {};
  take_result(request, result);
  add(counters.reads_lent);
  // After an error both are empty.
  request.payload = request.payload.subspan(length_of(request.lent.parts));
  return true;
}

// Finishes a READ whose plan is done.
void finish_plan(Request& request) {
  make_room_for_sums(request);
  take_result(request, request.store->finish_read(request.reading, request.sums));
  request.reading = {};
}

void perform_read(Request& request, Counters& counters) {
  const Status status =
      request.store->begin_read(request.reading, read_request(request), Wait::kYes);
  if (status != Status::kOk) return take_result(request, {status, 0, 0});
  if (lend(request, counters)) return;
  request.reading.plan().run();
  finish_plan(request);
}

void perform_stat(Request& request) {
  store::ObjectFigures figures;
  request.status = request.store->stat(request.object(), figures);
  if (request.status != Status::kOk) return;
  const uint32_t tail[2] = {figures.epoch, 0};
  request.body.resize(24);
  std::memcpy(request.body.data(), &figures.length, 8);
  std::memcpy(request.body.data() + 8, &figures.allocated, 8);
  std::memcpy(request.body.data() + 16, tail, 8);
}

void perform_seek(Request& request) {
  store::SeekResult result;
  const bool hole = request.header.length != 0;
  request.status = request.store->seek(request.object(), request.header.epoch,
                                       request.header.offset, hole, result);
  if (request.status != Status::kOk) return;
  const uint64_t body[2] = {result.at, result.ended ? 1u : 0u};
  request.body.resize(sizeof(body));
  std::memcpy(request.body.data(), body, sizeof(body));
}

void perform_sync(Request& request) {
  store::ChunkStore& store = *request.store;
  const uint64_t oldest = request.header.offset;
  if (oldest != 0 && oldest != store.incarnation())
    request.status = Status::kStaleIncarnation;
  else if (request.header.file_id == kEveryFile)
    request.status = store.sync_all();
  else
    request.status = store.sync(request.object(), request.header.epoch);
}

Copy copy_of(const Request& request) {
  const CopySource& source = request.source;
  return {.from = request.source_store,
          .to = request.store,
          .source = {source.file_id, source.stripe_index},
          .sink = request.object(),
          .source_offset = source.offset,
          .sink_offset = request.header.offset,
          .length = request.header.length,
          .epoch = request.header.epoch,
          .source_epoch = source.epoch_end - 1,  // 0, from older clients: any epoch
          .must_exist = (source.flags & kCopyMustExist) != 0,
          .sink_must_exist = must_exist(request)};
}

// The reply's body has a status for each object, as packed u16.
void perform_delete_all(Request& request) {
  std::vector<Status> statuses(request.objects.size(), Status::kOk);
  for (const store::ObjectId& object : request.objects) request.dropped->deleted(object);
  request.store->remove_all(request.objects, statuses);
  request.body.resize(statuses.size() * sizeof(uint16_t));
  for (size_t index = 0; index < statuses.size(); ++index) {
    const auto status = static_cast<uint16_t>(statuses[index]);
    std::memcpy(request.body.data() + index * sizeof(status), &status, sizeof(status));
  }
  request.status = Status::kOk;
}

// Performs the whole operation, blocking; called by a worker.
void perform(Request& request, Counters& counters) {
  const FrameHeader& header = request.header;
  store::ChunkStore& target = *request.store;
  switch (request.op()) {
    case Op::kRead:
      return perform_read(request, counters);
    case Op::kStat:
      return perform_stat(request);
    case Op::kSync:
      return perform_sync(request);
    case Op::kSeek:
      return perform_seek(request);
    case Op::kWrite:
      request.status = target.write(write_request(request));
      return;
    case Op::kPunch:
      request.status = absent_or(
          request, target.punch(request.object(), header.offset, header.length, header.epoch));
      return;
    case Op::kTruncate:
      request.status =
          target.truncate(request.object(), header.offset, header.epoch, must_exist(request));
      return;
    case Op::kRaiseEpoch:
      request.status = target.raise_epoch(request.object(), header.epoch, must_exist(request));
      return;
    case Op::kDelete:
      request.dropped->deleted(request.object());
      request.status = target.remove(request.object());
      return;
    case Op::kDeleteAll:
      return perform_delete_all(request);
    case Op::kCopy:
      request.status = copy_blocks(copy_of(request));
      return;
    case Op::kPing:
    case Op::kFetch:
    case Op::kFence:
    case Op::kDropNames:
      break;
  }
  request.status = Status::kBadRequest;
}

store::IoPlan& plan_of(Request& request) {
  return request.op() == Op::kRead ? request.reading.plan() : request.writing.plan();
}

Counter& count_of(Counters& counters, Op op) {
  switch (op) {
    case Op::kRead:
      return counters.reads;
    case Op::kWrite:
      return counters.writes;
    case Op::kSync:
      return counters.syncs;
    case Op::kTruncate:
      return counters.truncates;
    case Op::kPunch:
      return counters.punches;
    case Op::kStat:
      return counters.stats;
    case Op::kSeek:
      return counters.seeks;
    case Op::kCopy:
      return counters.copies;
    case Op::kDelete:
      return counters.deletes;
    case Op::kDeleteAll:
      return counters.deletes_all;
    case Op::kFetch:
      return counters.fetches;
    case Op::kFence:
      return counters.fences;
    case Op::kRaiseEpoch:
      return counters.epoch_raises;
    case Op::kDropNames:
      return counters.name_drops;
    case Op::kPing:
      break;
  }
  return counters.pings;
}

}  // namespace

void Operations::execute(std::shared_ptr<Request> request) {
  add(count_of(lane_.counters(), request->op()));
  if (auto* const entry = services_.targets.entry_of(request->header.target); entry != nullptr) {
    request->store = entry->store.get();
    request->dropped = &entry->dropped;
    request->clients = &entry->clients;
    if (request->connection->purpose() == Purpose::kData) entry->clients.is(lane_.loop().now());
    request->incarnation = request->store->incarnation();
  }
  if (request->op() == Op::kCopy) {
    request->source_store = services_.targets.find(request->source.target);
  }
  switch (request->op()) {
    case Op::kPing:
      return lane_.finish(std::move(request));
    case Op::kFence:
      return fence(std::move(request));
    case Op::kRead:
      return read(std::move(request));
    case Op::kWrite:
      return write(std::move(request));
    default:
      return on_worker(services_.blocking, std::move(request));
  }
}

void Operations::read(std::shared_ptr<Request> request) {
  Request& wanted = *request;
  if (wanted.header.offset == 0) services_.fetcher.was_read(wanted.header.target, wanted.object());
  const Status status = wanted.store->begin_read(wanted.reading, read_request(wanted), Wait::kNo);
  if (status == Status::kEagain) return on_worker(services_.readers, std::move(request));
  if (status != Status::kOk) {
    wanted.status = absent_or(wanted, status);
    return lane_.finish(std::move(request));
  }
  if (lend(wanted, lane_.counters())) return lane_.finish(std::move(request));
  wanted.fetched =
      uring_ != nullptr && wanted.may_lend && wanted.store->fetch_to_lend(wanted.reading);
  if (wanted.reading.plan().done() || wanted.reading.plan().run_nowait()) {
    add(lane_.counters().reads_inline);
    return finish_read(std::move(request));
  }
  if (by_uring(request)) return add(lane_.counters().reads_uring);
  on_worker(services_.readers, std::move(request));
}

void Operations::finish_read(std::shared_ptr<Request> request) {
  if (request->fetched) {
    if (!lend(*request, lane_.counters())) return on_worker(services_.readers, std::move(request));
    return lane_.finish(std::move(request));
  }
  finish_plan(*request);
  lane_.finish(std::move(request));
}

void Operations::write(std::shared_ptr<Request> request) {
  Request& wanted = *request;
  if (first_mismatch(wanted.header.offset, wanted.payload, wanted.sums)) {
    add(lane_.counters().payload_checksum_errors);
    wanted.status = Status::kChecksum;
    return lane_.finish(std::move(request));
  }
  wanted.status = wanted.store->begin_write(wanted.writing, write_request(wanted), Wait::kNo);
  if (wanted.status == Status::kEagain) return on_worker(services_.writers, std::move(request));
  if (wanted.status != Status::kOk) return lane_.finish(std::move(request));
  store::IoPlan& plan = wanted.writing.plan();
  if (plan.done() || (!plan.direct() && wanted.header.length <= kInlineWriteMax)) {
    plan.run();
    add(lane_.counters().writes_inline);
    return finish_write(std::move(request));
  }
  if (by_uring(request)) return add(lane_.counters().writes_uring);
  on_worker(services_.writers, std::move(request));
}

void Operations::finish_write(std::shared_ptr<Request> request) {
  request->status = request->store->finish_write(request->writing);
  request->writing = {};
  lane_.finish(std::move(request));
}

void Operations::fence(std::shared_ptr<Request> request) {
  const uint64_t session = request->header.offset;
  // The metaserver's connections have no session, so no fence ever waits for another.
  if (session == 0 || request->connection->session() != 0) {
    request->status = Status::kBadRequest;
    return lane_.finish(std::move(request));
  }
  services_.sessions.fence(session);
  services_.close_session(session);
  // Another lane calls it, and must not be the one that drops the request.
  const bool taken = services_.sessions.when_ended(
      session, [&lane = lane_, request]() mutable { lane.complete(std::move(request)); });
  if (taken) return;
  request->status = Status::kBusy;
  lane_.finish(std::move(request));
}

void Operations::on_worker(WorkerPool& pool, std::shared_ptr<Request> request) {
  Request& wanted = *request;
  wanted.reading = {};
  wanted.writing = {};
  if (wanted.op() == Op::kRead) add(lane_.counters().reads_worker);
  if (wanted.op() == Op::kWrite) add(lane_.counters().writes_worker);
  const bool taken = pool.submit([&lane = lane_, request]() mutable {
    perform(*request, lane.counters());
    lane.complete(std::move(request));
  });
  if (taken) return;
  add(lane_.counters().busy_requests);
  wanted.status = Status::kBusy;
  lane_.finish(std::move(request));
}

bool Operations::by_uring(const std::shared_ptr<Request>& request) {
  store::IoPlan& plan = plan_of(*request);
  const auto segments = plan.segments();
  if (uring_ == nullptr || plan.fd() < 0 || uring_->room() < segments.size()) return false;
  request->segments_out = 1;  // one extra until all are submitted
  for (uint32_t index = 0; index < segments.size(); ++index) {
    if (segments[index].length > 0) submit(request, index);
  }
  --request->segments_out;
  return true;
}

void Operations::submit(const std::shared_ptr<Request>& request, uint32_t index) {
  store::IoPlan& plan = plan_of(*request);
  const store::IoSegment& segment = plan.segments()[index];
  ++request->segments_out;
  auto done = [this, request, index](int result) {
    --request->segments_out;
    if (plan_of(*request).complete(index, result)) submit(request, index);
    if (request->segments_out > 0) return;
    request->op() == Op::kRead ? finish_read(request) : finish_write(request);
  };
  uring_->start(net::UringIo{.fd = plan.fd(),
                             .write = plan.is_write(),
                             .parts = plan.parts(segment),
                             .offset = segment.file_offset},
                std::move(done));
}

}  // namespace braidfs::server
