#include "store/log.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "store/fault.h"
#include "store/io.h"

namespace braidfs::store {

namespace {

constexpr char kDirectory[] = "wal";
constexpr size_t kPartsMax = 1000;  // below IOV_MAX

}  // namespace

std::string Log::path_of(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "wal/%08lx", static_cast<unsigned long>(number));
  return text;
}

int Log::create_segment(uint64_t number, uint64_t first_sequence, std::shared_ptr<File>& file) {
  if (int r = device_.open(path_of(number), OpenMode::kCreate, file); r < 0) return r;
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
  Segment segment{.number = 1, .first_sequence = 1, .valid_length = kSegmentHeaderSize};
  if (int r = create_segment(1, 1, segment.file); r < 0) return status_of(r);
  segments_.push_back(std::move(segment));
  return Status::kOk;
}

int Log::read_segment(Segment& segment) {
  const std::string path = path_of(segment.number);
  if (int r = device_.open(path, OpenMode::kExisting, segment.file); r < 0) return r;
  FileFigures figures;
  if (int r = segment.file->figures(figures); r < 0) return r;
  segment.content.resize(figures.size);
  return read_whole(*segment.file, segment.content, 0);
}

// True: the segment is valid to its end, the next one may follow.
bool Log::scan_segment(Segment& segment, LogScan& scan) {
  SegmentHeader header;
  const std::span<const std::byte> raw = segment.content;
  if (raw.size() < kSegmentHeaderSize) return false;
  std::memcpy(&header, raw.data(), sizeof header);
  if (!valid(header, segment.number, uuid_)) return false;
  if (next_sequence_ == 0) next_sequence_ = header.first_sequence;
  if (header.first_sequence != next_sequence_) return false;
  segment.first_sequence = header.first_sequence;
  size_t at = kSegmentHeaderSize;
  EntryView view;
  while (decode_entry(raw.subspan(at), view) && view.header.sequence == next_sequence_) {
    at += view.length;
    ++next_sequence_;
    ++scan.entries;
  }
  segment.valid_length = at;
  return at == raw.size();
}

// Searches what follows the first invalid entry for one that shows it had been durable.
void Log::look_past(const Segment& segment, size_t from, LogScan& scan) const {
  const std::span<const std::byte> raw = segment.content;
  EntryView view;
  for (size_t at = (from + 7) / 8 * 8; at + sizeof(EntryHeader) <= raw.size(); at += 8) {
    uint32_t magic = 0;
    std::memcpy(&magic, raw.data() + at, sizeof magic);
    if (magic != kEntryMagic || !decode_entry(raw.subspan(at), view)) continue;
    if (view.header.durable_sequence < next_sequence_) continue;
    scan.status = Status::kCorrupt;
    scan.message = "the log is damaged: entry " + std::to_string(next_sequence_) + " in " +
                   path_of(segment.number) + " at " +
                   std::to_string(segment.valid_length) + " was durable and is not valid";
    return;
  }
}

LogScan Log::load() {
  LogScan scan;
  std::vector<uint64_t> numbers;
  const int listed = device_.list(kDirectory, [&](std::string_view name) {
    uint64_t number = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number, 16);
    if (parsed.ptr == name.data() + name.size() && number != 0) numbers.push_back(number);
  });
  std::sort(numbers.begin(), numbers.end());
  if (listed < 0 || numbers.empty()) {
    return {Status::kCorrupt, "the log (directory wal) is missing or empty", 0};
  }
  next_sequence_ = 0;
  bool whole = true;
  for (const uint64_t number : numbers) {
    Segment segment{.number = number};
    if (int r = read_segment(segment); r < 0) {
      return {status_of(r), "cannot read " + path_of(number), 0};
    }
    if (whole) {
      whole = scan_segment(segment, scan);
      if (segment.valid_length != 0) good_segments_ = segments_.size() + 1;
      if (!whole) look_past(segment, std::max(segment.valid_length, uint64_t{8}), scan);
    } else {
      look_past(segment, 0, scan);
    }
    segments_.push_back(std::move(segment));
  }
  if (good_segments_ == 0 && scan.status == Status::kOk) {
    scan = {Status::kCorrupt, "the first log segment " + path_of(numbers[0]) + " is damaged", 0};
  }
  return scan;
}

void Log::visit(const std::function<void(const EntryView&)>& visit) const {
  EntryView view;
  for (size_t i = 0; i < good_segments_; ++i) {
    const std::span<const std::byte> raw(segments_[i].content.data(), segments_[i].valid_length);
    for (size_t at = kSegmentHeaderSize; at < raw.size(); at += view.length) {
      if (!decode_entry(raw.subspan(at), view)) return;
      visit(view);
    }
  }
}

// Highest first, so that a cut in between leaves the same torn end, only shorter.
int Log::trim_torn_end() {
  while (segments_.size() > good_segments_) {
    if (int r = device_.unlink(path_of(segments_.back().number)); r < 0) return r;
    if (int r = device_.sync_directory(kDirectory); r < 0) return r;
    segments_.pop_back();
  }
  Segment& last = segments_.back();
  if (last.valid_length != last.content.size()) {
    if (int r = last.file->truncate(last.valid_length); r < 0) return r;
  }
  for (Segment& segment : segments_) {
    if (int r = segment.file->sync(); r < 0) return r;
  }
  return 0;
}

Status Log::begin_after_load() {
  const uint64_t number = segments_.back().number + 1;
  if (int r = trim_torn_end(); r < 0) return status_of(r);
  durable_sequence_ = next_sequence_ - 1;
  for (Segment& segment : segments_) segment.content = {};
  fault(FaultPoint::kRecoverAfterTrim);
  Segment segment{.number = number, .first_sequence = next_sequence_,
                  .valid_length = kSegmentHeaderSize};
  if (int r = create_segment(number, next_sequence_, segment.file); r < 0) return status_of(r);
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

// A device without room, or that cannot: the write itself tells, or does without.
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
      behind_ = 0;  // and nothing is appended any more
      return Status::kEio;
    }
    Segment& segment = segments_.back();
    file = segment.file;
    from = segment.written_out;
    to = segment.valid_length / kBlockSize * kBlockSize;  // the last page will be written to again
    segment.written_out = to;
    behind_ = segment.valid_length - to;
  }
  if (from >= to) return Status::kOk;
  const int result = file->write_out(from, to - from);
  if (result == 0) return Status::kOk;
  const std::lock_guard guard(mu_);
  failed_ = true;  // as after a failed fdatasync: the kernel may tell it only once
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
  encode_entry(header, runs, sums, scratch_);
  if (Status s = write_at_end(scratch_, bytes); s != Status::kOk) return s;
  sequence = next_sequence_++;
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
    std::vector<std::shared_ptr<File>> files = std::move(unsynced_);
    unsynced_.clear();
    files.push_back(segments_.back().file);
    guard.unlock();
    int result = 0;
    for (const auto& file : files) result = result < 0 ? result : file->sync();
    guard.lock();
    syncing_ = false;
    if (result < 0) failed_ = true;
    else durable_sequence_ = std::max(durable_sequence_, reached);
    synced_.notify_all();
  }
  return Status::kOk;
}

// Appenders wait for the two syncs of the new segment: a millisecond, once per checkpoint.
Status Log::rotate(uint64_t& number) {
  const std::lock_guard guard(mu_);
  if (failed_) return Status::kEio;
  number = segments_.back().number;
  if (segments_.back().valid_length == kSegmentHeaderSize) return Status::kOk;  // still empty
  Segment segment{.number = number + 1, .first_sequence = next_sequence_,
                  .valid_length = kSegmentHeaderSize};
  if (int r = create_segment(segment.number, next_sequence_, segment.file); r < 0)
    return status_of(r);
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
  for (const uint64_t old : numbers) {  // oldest first: what remains is always a whole tail
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

uint64_t Log::last_sequence() const {
  const std::lock_guard guard(mu_);
  return next_sequence_ - 1;
}

}  // namespace braidfs::store
