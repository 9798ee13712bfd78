#include "store/log.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "store/fault.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

constexpr char kDirectory[] = "wal";
constexpr size_t kPartsMax = 1000;  // less than IOV_MAX

}  // namespace

std::string Log::path_of(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "wal/%08lx", static_cast<unsigned long>(number));
  return text;
}

std::string Log::promises_path_of(uint64_t number) { return path_of(number) + ".synced"; }

int Log::create_segment(uint64_t number, uint64_t first_sequence, Segment& segment) {
  segment = {.number = number,
             .first_sequence = first_sequence,
             .valid_length = kSegmentHeaderSize,
             .key = segment_key(uuid_, number)};
  std::shared_ptr<File>& file = segment.file;
  if (int r = device_.open(path_of(number), OpenMode::kCreate, file); r < 0) return r;
  std::shared_ptr<File> promises;
  if (int r = device_.open(promises_path_of(number), OpenMode::kCreate, promises); r < 0) return r;
  if (int r = promises->truncate(0); r < 0) return r;
  segment.promises = std::make_shared<PromiseFile>(std::move(promises), segment.key);
  // The file then says where the segment began, even if the segment is lost before anything is in
  // it.
  segment.promises->keep(first_sequence - 1, {});
  std::vector<std::byte> raw(kSegmentHeaderSize);
  SegmentHeader header;
  header.number = number;
  header.first_sequence = first_sequence;
  header.uuid = uuid_;
  seal(header);
  std::memcpy(raw.data(), &header, sizeof header);
  if (int r = file->truncate(0); r < 0) return r;
  if (int r = write_whole(*file, raw, 0); r < 0) return r;
  if (int r = file->sync(); r < 0) return r;
  const int r = device_.sync_directory(kDirectory);
  fault(FaultPoint::kRotateAfterCreate);
  return r;
}

Status Log::create() {
  Segment segment;
  if (int r = create_segment(1, 1, segment); r < 0) return status_of(r);
  segments_.push_back(std::move(segment));
  return Status::kOk;
}

// Removes the highest segments first, so that a power cut in between leaves the same torn end, only
// shorter. The promises stay until a checkpoint has stored what recovery made of them.
int Log::trim_torn_end() {
  while (segments_.size() > good_segments_) {
    const uint64_t number = segments_.back().number;
    if (int r = device_.unlink(path_of(number)); r < 0 && r != -ENOENT) return r;
    if (int r = device_.sync_directory(kDirectory); r < 0) return r;
    stale_promises_.push_back(number);
    segments_.pop_back();
  }
  if (segments_.empty()) return 0;
  Segment& last = segments_.back();
  if (last.valid_length != last.content.size()) {
    if (int r = last.file->truncate(last.valid_length); r < 0) return r;
  }
  for (Segment& segment : segments_) {
    if (!segment.file) continue;  // the segment's file is missing
    if (int r = segment.file->sync(); r < 0) return r;
  }
  return 0;
}

Status Log::begin_after_load() {
  uint64_t number = 1;
  for (const Segment& segment : segments_) number = std::max(number, segment.number + 1);
  for (const uint64_t stale : stale_promises_) number = std::max(number, stale + 1);
  if (int r = trim_torn_end(); r < 0) return status_of(r);
  durable_sequence_ = next_sequence_ - 1;
  for (Segment& segment : segments_) {
    segment.content = {};
    segment.entries = {};
  }
  loaded_promises_ = {};
  fault(FaultPoint::kRecoverAfterTrim);
  Segment segment;
  if (int r = create_segment(number, next_sequence_, segment); r < 0) return status_of(r);
  segments_.push_back(std::move(segment));
  count_bytes();
  return Status::kOk;
}

Status Log::write_at_end(std::span<const std::byte> encoded, std::span<const iovec> bytes) {
  Segment& segment = segments_.back();
  std::vector<iovec> parts;
  parts.reserve(1 + bytes.size());
  parts.push_back({const_cast<std::byte*>(encoded.data()), encoded.size()});
  parts.insert(parts.end(), bytes.begin(), bytes.end());
  uint64_t at = segment.valid_length;
  allocate_ahead(segment, parts);
  for (size_t first = 0; first < parts.size(); first += kPartsMax) {
    const std::span<iovec> some(parts.data() + first, std::min(kPartsMax, parts.size() - first));
    uint64_t length = 0;
    for (const iovec& part : some) length += part.iov_len;
    if (int r = write_parts(*segment.file, some, at); r < 0) return status_of(r);
    at += length;
  }
  bytes_ += at - segment.valid_length;
  segment.valid_length = at;
  behind_ = at - segment.written_out;
  return Status::kOk;
}

// The result is ignored: on a device without room the write itself reports that; a device that
// cannot allocate ahead works without.
void Log::allocate_ahead(Segment& segment, std::span<const iovec> parts) {
  uint64_t end = segment.valid_length;
  for (const iovec& part : parts) end += part.iov_len;
  if (end <= segment.allocated) return;
  segment.file->allocate(segment.allocated, end + kAllocateBytes - segment.allocated);
  segment.allocated = end + kAllocateBytes;
}

Status Log::write_out() {
  std::shared_ptr<File> file;
  uint64_t from = 0;
  uint64_t to = 0;
  {
    const std::lock_guard guard(mu_);
    if (failed_) {
      behind_ = 0;  // nothing is appended any more
      return Status::kEio;
    }
    Segment& segment = segments_.back();
    file = segment.file;
    from = segment.written_out;
    // The last, partial page will be written again.
    to = segment.valid_length / kBlockSize * kBlockSize;
    segment.written_out = to;
    behind_ = segment.valid_length - to;
  }
  if (from >= to) return Status::kOk;
  const int result = file->write_out(from, to - from);
  if (result == 0) return Status::kOk;
  const std::lock_guard guard(mu_);
  // As after a failed fdatasync: the kernel may report the error only once.
  failed_ = true;
  return status_of(result);
}

Status Log::append(EntryHeader header, std::span<const EntryRun> runs,
                   std::span<const uint64_t> sums, std::span<const iovec> bytes,
                   uint64_t& sequence) {
  for (const iovec& part : bytes) header.bytes_length += static_cast<uint32_t>(part.iov_len);
  const std::lock_guard guard(mu_);
  if (failed_) return Status::kEio;
  header.sequence = next_sequence_;
  header.durable_sequence = durable_sequence_;
  header.distance =
      static_cast<uint32_t>(std::min<uint64_t>(next_sequence_ - sequence, UINT32_MAX));
  encode_entry(header, runs, sums, segments_.back().key, scratch_);
  if (Status s = write_at_end(scratch_, bytes); s != Status::kOk) return s;
  sequence = next_sequence_++;
  const bool deletes = header.kind == EntryKind::kDelete;
  if (deletes || header.kind == EntryKind::kCommit) {
    promised_.push_back({.file_id = header.file_id,
                         .stripe_index = header.stripe_index,
                         .deleted = deletes,
                         .sequence = deletes ? sequence : header.value});
  }
  return Status::kOk;
}

Status Log::sync(uint64_t sequence) {
  std::unique_lock guard(mu_);
  while (durable_sequence_ < sequence) {
    if (failed_) return Status::kEio;
    if (syncing_) {
      synced_.wait(guard);
      continue;
    }
    syncing_ = true;
    const uint64_t reached = next_sequence_ - 1;
    const std::vector<Promise> promises = std::exchange(promised_, {});
    const std::shared_ptr<PromiseFile> promise_file = segments_.back().promises;
    std::vector<std::shared_ptr<File>> files = std::move(unsynced_);
    unsynced_.clear();
    files.push_back(segments_.back().file);
    guard.unlock();
    int result = 0;
    for (const auto& file : files) result = result < 0 ? result : file->sync();
    if (result == 0) promise_file->keep(reached, promises);
    guard.lock();
    syncing_ = false;
    if (result < 0)
      failed_ = true;
    else
      durable_sequence_ = std::max(durable_sequence_, reached);
    synced_.notify_all();
  }
  return Status::kOk;
}

// Appenders wait for the two syncs of the new segment: about a millisecond, once per checkpoint.
Status Log::rotate(uint64_t& number) {
  const std::lock_guard guard(mu_);
  if (failed_) return Status::kEio;
  number = segments_.back().number;
  if (segments_.back().valid_length == kSegmentHeaderSize) return Status::kOk;  // it is still empty
  Segment segment;
  if (int r = create_segment(number + 1, next_sequence_, segment); r < 0) return status_of(r);
  unsynced_.push_back(segments_.back().file);
  segments_.push_back(std::move(segment));
  behind_ = 0;
  ++number;
  return Status::kOk;
}

Status Log::drop_before(uint64_t number) {
  std::vector<uint64_t> numbers;
  {
    const std::lock_guard guard(mu_);
    for (const Segment& segment : segments_)
      if (segment.number < number) numbers.push_back(segment.number);
  }
  // The promises are removed first, durably: all they cover is in the objects now, and they must
  // not speak of what is removed later. Promises that came back without their segment would make a
  // log that begins in the wrong place: recovery would number its entries anew, below those that
  // objects have, or refuse the target.
  std::vector<uint64_t> promised = std::exchange(stale_promises_, {});
  promised.insert(promised.end(), numbers.begin(), numbers.end());
  for (const uint64_t old : promised) {
    if (int r = device_.unlink(promises_path_of(old)); r < 0 && r != -ENOENT) return status_of(r);
  }
  if (!numbers.empty()) {
    if (int r = device_.sync_directory(kDirectory); r < 0) return status_of(r);
  }
  // Oldest first, so what remains is always a whole tail of the log.
  for (const uint64_t old : numbers) {
    if (int r = device_.unlink(path_of(old)); r < 0 && r != -ENOENT) return status_of(r);
    if (int r = device_.sync_directory(kDirectory); r < 0) return status_of(r);
  }
  const std::lock_guard guard(mu_);
  std::erase_if(segments_, [&](const Segment& segment) { return segment.number < number; });
  count_bytes();
  return Status::kOk;
}

void Log::count_bytes() {
  uint64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.valid_length - kSegmentHeaderSize;
  bytes_ = bytes;
}

uint64_t Log::newest_start() const {
  const std::lock_guard guard(mu_);
  return segments_.back().first_sequence;
}

uint64_t Log::last_sequence() const {
  const std::lock_guard guard(mu_);
  return next_sequence_ - 1;
}

}  // namespace braidfs::store
