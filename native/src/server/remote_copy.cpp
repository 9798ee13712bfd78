#include "server/remote_copy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "server/low_priority.h"

namespace braidfs::server {

namespace {

constexpr uint64_t kPunchBytes = uint64_t{1} << 31;  // at once
constexpr int kExtentsAtOnce = 64;                   // of one step
// Shorter writes are not worth the way to another thread.
constexpr uint64_t kWrittenByOthers = 256u << 10;
constexpr uint64_t kNothing = store::SeekResult::kNothing;

}  // namespace

RemoteCopy::RemoteCopy(net::Socket socket, std::chrono::milliseconds patience)
    : source_(std::move(socket), patience) {}

void RemoteCopy::begin(const CopyOrder& order) {
  source_.choose(order.source);
  order_ = order;
  why_.clear();
  before_.reset();
  is_open_ = is_done_ = false;
  source_length_ = incarnation_ = length_ = bytes_ = at_ = extent_end_ = 0;
  epoch_ = 0;
}

CopyProgress RemoteCopy::step(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes) {
  Status status = advance(store, writers, bytes);
  if (status == Status::kOk && store.incarnation() != incarnation_)
    status = refuse(Status::kStaleIncarnation, "the target lost power meanwhile");
  if (status == Status::kEio && !is_usable()) why_ = "the source's server: " + source_.fault();
  if (is_done_ || status != Status::kOk) source_.rest();
  return {.status = status,
          .message = why_,
          .is_done = is_done_,
          .bytes = bytes_,
          .incarnation = incarnation_,
          .source_incarnation = source_.incarnation(),
          .serves_clients = source_.serves_clients()};
}

Status RemoteCopy::advance(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes) {
  if (!is_open_) {
    const Status status = open(store);
    if (status != Status::kOk) return status;
    is_open_ = true;
  }
  const Status status = move(store, writers, bytes);
  if (status != Status::kOk || at_ < source_length_) return status;
  return close(store);
}

Status RemoteCopy::refuse(Status status, std::string why) {
  why_ = std::move(why);
  return status;
}

// ---- the steps ------------------------------------------------------------------------

Status RemoteCopy::open(store::ChunkStore& store) {
  incarnation_ = store.incarnation();
  Status status = stat(before_);
  if (status != Status::kOk) return status;
  if (!before_ && order_.must_exist)
    return refuse(Status::kNoObject, "the source has lost its object");
  if (before_ && before_->epoch > order_.epoch)
    return refuse(Status::kStaleTruncateEpoch, "the source has a newer epoch");
  source_length_ = before_ ? before_->length : 0;
  if (source_length_ > limits::kObjectBytesMax)
    return refuse(Status::kEio, "the source's object is longer than any");
  if (source_length_ == 0) {  // the answer names the incarnation
    std::span<const std::byte> body;
    status = source_.ask({.op = Op::kSync, .epoch = order_.epoch}, body);
    if (status != Status::kOk) return status;
  }
  store::ObjectFigures former;
  status = store.stat(order_.object, former);
  if (status == Status::kNoObject) return Status::kOk;
  if (status != Status::kOk) return status;
  if (former.epoch > order_.epoch)
    return refuse(Status::kStaleTruncateEpoch, "the new object has a newer epoch");
  epoch_ = former.epoch;
  length_ = former.length;
  const uint64_t end = round_up_to_block(former.length);
  for (uint64_t at = 0; status == Status::kOk && at < end; at += kPunchBytes)
    status = store.punch(order_.object, at, std::min(kPunchBytes, end - at), epoch_);
  return status;
}

Status RemoteCopy::move(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes) {
  const auto take = [&](SourceConnection::Arrived arrived) {
    write(store, writers, std::move(arrived));
  };
  const uint64_t enough = bytes_ + bytes;
  for (int extents = 0; at_ < source_length_ && bytes_ < enough && extents < kExtentsAtOnce;) {
    if (at_ == extent_end_) {
      ++extents;
      if (const Status status = next_extent(); status != Status::kOk) return status;
      continue;
    }
    const uint64_t end = at_ + std::min(extent_end_ - at_, round_up_to_block(enough - bytes_));
    if (const Status status = source_.read(at_, end, take); status != Status::kOk) return status;
    at_ = end;
  }
  return Status::kOk;
}

void RemoteCopy::write(store::ChunkStore& store, WorkerPool& writers,
                       SourceConnection::Arrived arrived) {
  const uint64_t length = arrived.bytes.size();
  bytes_ += length;
  length_ = std::max(length_, arrived.offset + length);
  const auto task = [&store, object = order_.object, epoch = epoch_, one = std::move(arrived)]() {
    const LowPriority low;
    one.done(store.write({.object = object,
                          .epoch = epoch,
                          .offset = one.offset,
                          .payload = one.bytes,
                          .sums = one.sums}));
  };
  if (length < kWrittenByOthers || !writers.submit(task)) task();
}

// The object gets its epoch, and its length where that does not follow from its bytes. It is
// refused when the object has that epoch, and another length, from a former copy.
Status RemoteCopy::close(store::ChunkStore& store) {
  Status status = length_ == source_length_
                      ? store.raise_epoch(order_.object, order_.epoch)
                      : store.truncate(order_.object, source_length_, order_.epoch);
  if (status == Status::kOk) status = store.sync(order_.object, order_.epoch);
  std::optional<Figures> after;
  if (status == Status::kOk) status = stat(after);
  if (status != Status::kOk) return status;
  if (after != before_)
    return refuse(Status::kStaleTruncateEpoch, "the source changed while it was copied");
  is_done_ = true;
  return Status::kOk;
}

// ---- the source -----------------------------------------------------------------------

Status RemoteCopy::stat(std::optional<Figures>& found) {
  found.reset();
  std::span<const std::byte> body;
  const Status status = source_.ask({.op = Op::kStat}, body);
  if (status == Status::kNoObject) return Status::kOk;
  if (status != Status::kOk) return status;
  uint64_t words[3];
  if (body.size() != sizeof(words)) return refuse(Status::kEio, "the source's figures are none");
  std::memcpy(words, body.data(), sizeof(words));
  found = {.length = words[0], .epoch = static_cast<uint32_t>(words[2])};
  return Status::kOk;
}

// From at_ == extent_end_ to the next data.
Status RemoteCopy::next_extent() {
  uint64_t begin = 0;
  Status status = seek(at_, false, begin);
  if (status != Status::kOk) return status;
  at_ = extent_end_ = std::max(at_, round_down_to_block(std::min(begin, source_length_)));
  if (begin >= source_length_) {
    at_ = extent_end_ = source_length_;
    return Status::kOk;
  }
  uint64_t end = 0;
  status = seek(begin, true, end);
  if (status != Status::kOk) return status;
  if (end <= begin) return refuse(Status::kEio, "the source has an extent without bytes");
  extent_end_ = std::min(end, source_length_);
  return Status::kOk;
}

// kNothing: there is none.
Status RemoteCopy::seek(uint64_t from, bool hole, uint64_t& at) {
  at = from;
  while (true) {
    std::span<const std::byte> body;
    const Status status = source_.ask(
        {.op = Op::kSeek, .offset = at, .length = hole ? 1u : 0u, .epoch = order_.epoch}, body);
    if (status != Status::kOk) return status;
    uint64_t words[2];
    if (body.size() != sizeof(words)) return refuse(Status::kEio, "the source seeks nothing");
    std::memcpy(words, body.data(), sizeof(words));
    const uint64_t former = std::exchange(at, words[0]);
    if (at == kNothing || (words[1] != 0 && at >= from)) return Status::kOk;
    if (at <= former) return refuse(Status::kEio, "the source's seek does not go on");
  }
}

}  // namespace braidfs::server
