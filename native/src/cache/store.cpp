#include "cache/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace braidfs::cache {

namespace {

constexpr const char* kLockName = "lock";
constexpr const char* kSuperName = "braidfs-cache";
constexpr uint64_t kSegmentShare = 64;  // a segment is one of so many parts of the whole
constexpr uint64_t kSegmentBytesMin = 8u << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;
constexpr uint64_t kMib = 1u << 20;
constexpr size_t kRunPartsMax = 900;  // with a head for each slice, less than IOV_MAX

std::string describe_error(const std::string& what, int error) {
  return what + ": " + std::strerror(error);
}

uint64_t segment_bytes_for(uint64_t bytes_max) {
  return std::clamp(bytes_max / kSegmentShare / kMib * kMib, kSegmentBytesMin, kSegmentBytesMax);
}

// Takes the lock, which is held as long as the fd is open. On failure: an empty fd, and a sentence
// in `reason`.
net::UniqueFd take_lock(const Files& files, std::string& reason) {
  const std::string path = files.path(kLockName);
  net::UniqueFd file;
  if (const int error = open_file(path, O_CREAT | O_RDWR, file)) {
    reason = describe_error("cache_dir " + files.directory(), -error);
  } else if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    reason = errno == EWOULDBLOCK ? "cache_dir " + files.directory() +
                                        " is in use by another mount: give each mount its own"
                                  : describe_error(path, errno);
    file.reset();
  }
  return file;
}

// The size of a segment, from the superblock or from a new one. 0: `reason` says why not.
uint64_t segment_bytes_of(const Files& files, const StoreSettings& settings, std::string& reason) {
  std::vector<std::byte> bytes;
  const int read = files.read_small(kSuperName, bytes);
  const auto known = read == 0 ? decode_superblock(bytes) : std::nullopt;
  if (known && known->cluster != settings.cluster) {
    reason = "cache_dir " + files.directory() +
             " holds bytes of another file system: empty it, or give another directory";
    return 0;
  }
  if (known && known->segment_bytes * 2 <= settings.bytes_max) return known->segment_bytes;
  for (const uint32_t number : files.numbers()) files.remove(number);
  const Superblock made{settings.cluster, segment_bytes_for(settings.bytes_max)};
  if (const int error = files.write_small(kSuperName, encode(made)); error != 0) {
    reason = describe_error("cache_dir " + files.directory(), -error);
    return 0;
  }
  return made.segment_bytes;
}

}  // namespace

size_t Store::Hash::operator()(const SliceKey& key) const noexcept {
  uint64_t mixed = key.ino * 0x9E37'79B9'7F4A'7C15 + key.slice;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8'FEB8'6659'FD93;
  return mixed ^ mixed >> 32;
}

std::unique_ptr<Store> Store::open(const StoreSettings& settings, std::string& reason) {
  if (settings.bytes_max < StoreSettings::kBytesMin) {
    reason = "cache_size is less than 64MiB";
    return nullptr;
  }
  if (::mkdir(settings.directory.c_str(), 0700) != 0 && errno != EEXIST) {
    reason = describe_error("cache_dir " + settings.directory, errno);
    return nullptr;
  }
  if (const std::string why = why_untrusted(settings.directory); !why.empty()) {
    reason = "cache_dir " + settings.directory + ": " + why;
    return nullptr;
  }
  const Files files(settings.directory);
  net::UniqueFd lock = take_lock(files, reason);
  const uint64_t segment_bytes = lock ? segment_bytes_of(files, settings, reason) : 0;
  if (segment_bytes == 0) return nullptr;
  std::unique_ptr<Store> store(new Store(settings, std::move(lock), segment_bytes));
  store->load();
  return store;
}

Store::Store(const StoreSettings& settings, net::UniqueFd lock, uint64_t segment_bytes)
    : files_(settings.directory),
      lock_(std::move(lock)),
      segment_bytes_(segment_bytes),
      segments_max_(settings.bytes_max / segment_bytes),
      heads_(make_pages(kRunSlicesMax * sizeof(RecordHead))) {}

// ---- at start, one thread ----

void Store::load() {
  std::vector<uint32_t> numbers = files_.numbers();
  while (numbers.size() > segments_max_) {
    files_.remove(numbers.front());
    numbers.erase(numbers.begin());
  }
  for (const uint32_t number : numbers) load_segment(number);
  resume_last_segment();
}

void Store::load_segment(uint32_t number) {
  auto segment = std::make_shared<Segment>();
  segment->number = number;
  if (files_.open(number, segment_bytes_, segment->bytes) != 0) return files_.remove(number);
  for (const Placed& placed : files_.entries(number, segment_bytes_)) {
    if (index_.size() < kRecordsMax) add_entry(placed, segment);
  }
  if (segment->keys.empty()) return files_.remove(number);
  segment->use = turnover_.fresh(segment->keys.size());
  segments_[number] = std::move(segment);
}

void Store::resume_last_segment() {
  if (segments_.empty()) return;
  const SegmentPtr& last = segments_.rbegin()->second;
  if (last->end + record_bytes(kSliceBytes) > segment_bytes_) return;
  if (files_.open_index(last->number, index_file_) != 0) return;
  index_end_ = last->keys.size() * sizeof(IndexEntry);
  if (::ftruncate(index_file_.get(), static_cast<off_t>(index_end_)) != 0) return;
  writing_ = last;
}

// ---- the index: LOCKED ----

void Store::add_entry(const Placed& placed, const SegmentPtr& segment) {
  if (const auto known = index_.find(placed.key); known != index_.end()) forget(known);
  index_.insert({placed.key, {segment, placed.stamp, placed.length, placed.block}});
  segment->keys.push_back(placed.key);
  ++segment->live;
  segment->end = uint64_t{placed.block} * kBlock + record_bytes(placed.length);
}

void Store::forget(Index::iterator entry) {
  if (--entry->second.segment->live == 0) any_empty_ = true;
  index_.erase(entry);
}

bool Store::is_there(const SliceKey& key, uint64_t stamp) const {
  const auto entry = index_.find(key);
  return entry != index_.end() && entry->second.stamp == stamp;
}

bool Store::fits(uint32_t length) const {
  return writing_ && writing_->end + record_bytes(length) <= segment_bytes_;
}

bool Store::may_grow() const {
  return segments_.size() < segments_max_ && index_.size() < kRecordsMax;
}

std::map<uint32_t, SegmentPtr>::iterator Store::replaceable(uint32_t length) {
  const auto is_empty = [&](const auto& entry) {
    return entry.second->live == 0 && entry.second != writing_;
  };
  if (any_empty_) {
    const auto empty = std::ranges::find_if(segments_, is_empty);
    if (empty != segments_.end()) return empty;
    any_empty_ = false;
  }
  if (!turnover_.may_replace(length)) return segments_.end();
  return std::ranges::find_if(segments_, [&](const auto& entry) {
    const Segment& segment = *entry.second;
    return entry.second != writing_ && turnover_.is_stale(segment.use, segment.keys.size());
  });
}

void Store::evict(std::map<uint32_t, SegmentPtr>::iterator which) {
  const SegmentPtr segment = which->second;
  for (const SliceKey& key : segment->keys) {
    const auto entry = index_.find(key);
    if (entry == index_.end() || entry->second.segment != segment) continue;
    forget(entry);
    ++counts_.evicted;
  }
  files_.remove(segment->number);
  segments_.erase(which);
}

void Store::fault() {
  ++counts_.faults;
  rests_until_ = Clock::now() + kFaultRest;
  if (writing_) writing_->end = segment_bytes_;
}

// ---- ANY THREAD ----

std::optional<Store::Found> Store::find(const SliceKey& key, uint64_t stamp) {
  const std::scoped_lock lock(mu_);
  const auto entry = index_.find(key);
  if (entry == index_.end()) return std::nullopt;
  const Entry& known = entry->second;
  if (known.stamp != stamp) {
    forget(entry);
    return std::nullopt;
  }
  turnover_.used(known.segment->use);
  return Found{known.segment, uint64_t{known.block} * kBlock, known.length};
}

bool Store::has(const SliceKey& key, uint64_t stamp) {
  const std::scoped_lock lock(mu_);
  return is_there(key, stamp);
}

bool Store::wants(const SliceKey& key, uint64_t stamp, uint32_t length) {
  const std::scoped_lock lock(mu_);
  if (is_there(key, stamp) || Clock::now() < rests_until_) return false;
  if (fits(length) || may_grow() || replaceable(length) != segments_.end()) return true;
  ++counts_.refused;
  turnover_.refused(Hash{}(key), length, index_.size());
  return false;
}

void Store::corrupt(const SliceKey& key, const Found& found) {
  const std::scoped_lock lock(mu_);
  ++counts_.corrupt;
  const auto entry = index_.find(key);
  if (entry == index_.end()) return;
  const Entry& known = entry->second;
  if (known.segment == found.segment && uint64_t{known.block} * kBlock == found.offset)
    forget(entry);
}

Store::Counts Store::counts() {
  const std::scoped_lock lock(mu_);
  Counts counts = counts_;
  counts.records = index_.size();
  counts.bytes = segments_.size() * segment_bytes_;
  return counts;
}

// ---- WRITER ONLY ----

size_t Store::put(std::span<const Slice> slices) {
  size_t written = 0;
  while (!slices.empty()) {
    const Run run = reserve(slices);
    if (run.segment && put(run)) written += run.slices.size();
    slices = slices.subspan(std::max<size_t>(run.slices.size(), 1));
  }
  return written;
}

bool Store::put(const Run& run) {
  std::vector<Placed> placed;
  uint64_t at = run.begin;
  for (const Slice& slice : run.slices) {
    placed.push_back({slice.key, slice.stamp, slice.length, static_cast<uint32_t>(at / kBlock)});
    at += record_bytes(slice.length);
  }
  const bool written = write(run, placed);
  const std::scoped_lock lock(mu_);
  if (!written) {
    fault();
    return false;
  }
  for (const Placed& one : placed) {
    add_entry(one, run.segment);
    ++counts_.written;
    counts_.bytes_written += one.length;
  }
  run.segment->use = turnover_.fresh(run.segment->keys.size());
  return true;
}

// Only this thread moves a segment's end.
Store::Run Store::reserve(std::span<const Slice> slices) {
  const Slice& first = slices.front();
  Run run;
  if (!reserve_place(first)) return run;
  run.segment = writing_ ? writing_ : new_segment();
  if (!run.segment) return run;
  run.begin = run.segment->end;
  run.end = run.begin + record_bytes(first.length);
  size_t count = 1;
  size_t parts = first.parts.size();
  while (count < std::min(slices.size(), kRunSlicesMax)) {
    const Slice& next = slices[count];
    parts += next.parts.size();
    if (parts > kRunPartsMax || !fits_in_run(run, next)) break;
    run.end += record_bytes(next.length);
    ++count;
  }
  run.slices = slices.first(count);
  return run;
}

bool Store::reserve_place(const Slice& slice) {
  const std::scoped_lock lock(mu_);
  if (is_there(slice.key, slice.stamp) || Clock::now() < rests_until_) return false;
  if (fits(slice.length)) return true;
  writing_ = nullptr;
  if (may_grow()) return true;
  const auto which = replaceable(slice.length);
  if (which == segments_.end()) return false;
  if (which->second->live > 0) turnover_.replaced(segment_bytes_);
  evict(which);
  return true;
}

bool Store::fits_in_run(const Run& run, const Slice& slice) {
  const uint64_t end = run.end + record_bytes(slice.length);
  if (end > segment_bytes_ || end - run.begin > kRunBytesMax) return false;
  const std::scoped_lock lock(mu_);
  return !is_there(slice.key, slice.stamp);
}

SegmentPtr Store::new_segment() {
  auto segment = std::make_shared<Segment>();
  {
    const std::scoped_lock lock(mu_);
    segment->number = segments_.empty() ? 1 : segments_.rbegin()->first + 1;
  }
  int error = files_.create(segment->number, segment_bytes_, segment->bytes);
  if (error == 0) error = files_.open_index(segment->number, index_file_);
  if (error != 0) files_.remove(segment->number);
  index_end_ = 0;
  const std::scoped_lock lock(mu_);
  if (error != 0) {
    fault();
    return nullptr;
  }
  segments_[segment->number] = segment;
  return writing_ = std::move(segment);
}

bool Store::write(const Run& run, std::span<const Placed> placed) {
  std::vector<iovec> places;
  std::vector<IndexEntry> entries;
  std::vector<std::span<const std::byte>> parts;
  RecordHead* head = heads();
  for (size_t which = 0; which < placed.size(); ++which, ++head) {
    parts.clear();
    places.push_back({head, kHeadBytes});
    for (const Part& part : run.slices[which].parts) {
      parts.push_back(part.place.first(part.length));
      const uint32_t whole = padded(part.length);
      std::memset(part.place.data() + part.length, 0, whole - part.length);
      places.push_back({part.place.data(), whole});
    }
    make_head(*head, placed[which].key, placed[which].stamp, parts);
    entries.push_back(index_entry(placed[which]));
  }
  const int count = static_cast<int>(places.size());
  const ssize_t bytes =
      ::pwritev(run.segment->bytes.get(), places.data(), count, static_cast<off_t>(run.begin));
  if (bytes != static_cast<ssize_t>(run.end - run.begin)) return false;
  const auto index = std::as_bytes(std::span(entries));
  const ssize_t indexed =
      ::pwrite(index_file_.get(), index.data(), index.size(), static_cast<off_t>(index_end_));
  if (indexed != static_cast<ssize_t>(index.size())) return false;
  index_end_ += index.size();
  return true;
}

}  // namespace braidfs::cache
