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
constexpr uint64_t kSegmentShare = 64;  // of the whole, one of so many
constexpr uint64_t kSegmentBytesMin = 8u << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;
constexpr uint64_t kMib = 1u << 20;

std::string because(const std::string& what, int error) { return what + ": " + std::strerror(error); }

uint64_t segment_bytes_for(uint64_t bytes_max) {
  return std::clamp(bytes_max / kSegmentShare / kMib * kMib, kSegmentBytesMin, kSegmentBytesMax);
}

// Held as long as the fd is open. Empty, and a sentence.
net::UniqueFd take_lock(const Files& files, std::string& reason) {
  const std::string path = files.path(kLockName);
  net::UniqueFd file;
  if (const int error = open_file(path, O_CREAT | O_RDWR, file)) {
    reason = because("cache_dir " + files.directory(), -error);
  } else if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    reason = errno == EWOULDBLOCK ? "cache_dir " + files.directory() +
                                        " is in use by another mount: give each mount its own"
                                  : because(path, errno);
    file.reset();
  }
  return file;
}

// 0: a sentence says why not.
uint64_t agree(const Files& files, const StoreSettings& settings, std::string& reason) {
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
    reason = because("cache_dir " + files.directory(), -error);
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
    reason = because("cache_dir " + settings.directory, errno);
    return nullptr;
  }
  const Files files(settings.directory);
  net::UniqueFd lock = take_lock(files, reason);
  const uint64_t segment_bytes = lock ? agree(files, settings, reason) : 0;
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
      head_(make_pages(sizeof(RecordHead))) {}

// ---- at the beginning, by one thread ----

void Store::load() {
  std::vector<uint32_t> numbers = files_.numbers();
  while (numbers.size() > segments_max_) {
    files_.remove(numbers.front());
    numbers.erase(numbers.begin());
  }
  for (const uint32_t number : numbers) load_segment(number);
  go_on_writing();
}

void Store::load_segment(uint32_t number) {
  auto segment = std::make_shared<Segment>();
  segment->number = number;
  if (files_.open(number, segment_bytes_, segment->bytes) != 0) return files_.remove(number);
  for (const Placed& placed : files_.entries(number, segment_bytes_)) {
    if (index_.size() < kRecordsMax) enter(placed, segment);
  }
  if (segment->keys.empty()) return files_.remove(number);
  segment->use = turnover_.fresh(segment->keys.size());
  segments_[number] = std::move(segment);
}

void Store::go_on_writing() {
  if (segments_.empty()) return;
  const SegmentPtr& last = segments_.rbegin()->second;
  if (last->end + record_bytes(kSliceBytes) > segment_bytes_) return;
  if (files_.open_index(last->number, index_file_) != 0) return;
  index_end_ = last->keys.size() * sizeof(IndexEntry);
  if (::ftruncate(index_file_.get(), static_cast<off_t>(index_end_)) != 0) return;
  writing_ = last;
}

// ---- the index: LOCKED ----

void Store::enter(const Placed& placed, const SegmentPtr& segment) {
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

bool Store::may_grow() const { return segments_.size() < segments_max_ && index_.size() < kRecordsMax; }

std::map<uint32_t, SegmentPtr>::iterator Store::replaceable(uint32_t length) {
  const auto is_empty = [&](const auto& entry) { return entry.second->live == 0 && entry.second != writing_; };
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
  if (known.segment == found.segment && uint64_t{known.block} * kBlock == found.offset) forget(entry);
}

Store::Counts Store::counts() {
  const std::scoped_lock lock(mu_);
  Counts counts = counts_;
  counts.records = index_.size();
  counts.bytes = segments_.size() * segment_bytes_;
  return counts;
}

// ---- WRITER ONLY ----

bool Store::put(const Slice& slice) {
  uint64_t at = 0;
  const SegmentPtr segment = reserve(slice, at);
  if (!segment) return false;
  const bool written = write(*segment, at, slice);
  const std::scoped_lock lock(mu_);
  if (!written) {
    fault();
    return false;
  }
  const Placed placed{slice.key, slice.stamp, slice.length, static_cast<uint32_t>(at / kBlock)};
  enter(placed, segment);
  segment->use = turnover_.fresh(segment->keys.size());
  ++counts_.written;
  counts_.bytes_written += slice.length;
  return true;
}

// Where its record goes; nullptr: nowhere, or it is there. Only this thread moves a segment's end.
SegmentPtr Store::reserve(const Slice& slice, uint64_t& at) {
  const uint32_t length = slice.length;
  {
    const std::scoped_lock lock(mu_);
    if (is_there(slice.key, slice.stamp) || Clock::now() < rests_until_) return nullptr;
    if (!fits(length)) {
      writing_ = nullptr;
      if (!may_grow()) {
        const auto which = replaceable(length);
        if (which == segments_.end()) return nullptr;
        if (which->second->live > 0) turnover_.replaced(segment_bytes_);
        evict(which);
      }
    }
  }
  SegmentPtr segment = writing_ ? writing_ : new_segment();
  if (segment) at = segment->end;
  return segment;
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

bool Store::write(const Segment& segment, uint64_t at, const Slice& slice) {
  std::vector<std::span<const std::byte>> parts;
  std::vector<iovec> places{{head_.get(), kHeadBytes}};
  for (const Part& part : slice.parts) {
    parts.push_back(part.place.first(part.length));
    const uint32_t whole = padded(part.length);
    std::memset(part.place.data() + part.length, 0, whole - part.length);
    places.push_back({part.place.data(), whole});
  }
  make_head(*head(), slice.key, slice.stamp, parts);
  const auto length = static_cast<ssize_t>(record_bytes(slice.length));
  const int count = static_cast<int>(places.size());
  if (::pwritev(segment.bytes.get(), places.data(), count, static_cast<off_t>(at)) != length) return false;
  const IndexEntry entry =
      index_entry({slice.key, slice.stamp, slice.length, static_cast<uint32_t>(at / kBlock)});
  const auto bytes = std::as_bytes(std::span(&entry, 1));
  const ssize_t indexed =
      ::pwrite(index_file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(index_end_));
  if (indexed != static_cast<ssize_t>(bytes.size())) return false;
  index_end_ += bytes.size();
  return true;
}

}  // namespace braidfs::cache
