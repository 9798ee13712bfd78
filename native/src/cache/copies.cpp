#include "cache/copies.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cache/disk.h"

namespace braidfs::cache {

namespace {

constexpr int kNice = 15;  // lanes have precedence, and so has the cache's writer
// IOPRIO_CLASS_IDLE, for disks whose scheduler honours it.
constexpr int kIdleDisk = 3 << 13;
constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS

bool is_newer(const CopyFiles::Known& one, const CopyFiles::Known& other) {
  return std::pair(one.made.tv_sec, one.made.tv_nsec) >
         std::pair(other.made.tv_sec, other.made.tv_nsec);
}

}  // namespace

Copies::Copies(std::string directory, uint64_t bytes_max, const Cluster& cluster, Store& store)
    : files_(std::move(directory), cluster), bytes_max_(bytes_max), store_(store) {}

void Copies::start() {
  if (thread_.joinable()) return;
  thread_ = std::thread([this] { run(); });
}

void Copies::stop() {
  {
    const std::scoped_lock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- ANY THREAD ----

net::UniqueFd Copies::open(const WholeFile& file) {
  const std::scoped_lock lock(mu_);
  net::UniqueFd bytes;
  if (!loaded_ || stopping_ || !is_copyable(file)) return bytes;
  const auto known = copies_.find(file.ino);
  if (known != copies_.end() && known->second.file == file) {
    Copy& copy = known->second;
    copy.opened = ++clock_;
    if (!copy.is_checked) {  // it is checked next
      const auto waits = std::ranges::find(unchecked_, file);
      if (waits != unchecked_.end()) std::rotate(unchecked_.begin(), waits, waits + 1);
      return bytes;
    }
    if (files_.open(file, bytes) == 0) {
      ++copy.users;
      return bytes;
    }
    bytes.reset();
    ++corrupt_;
  }
  if (known != copies_.end()) forget(known);  // a copy of older bytes of the file, or a broken one
  note_open(file);
  return bytes;
}

void Copies::closed(const WholeFile& file) {
  const std::scoped_lock lock(mu_);
  const auto known = copies_.find(file.ino);
  if (known != copies_.end() && known->second.file == file && known->second.users > 0)
    --known->second.users;
}

void Copies::wait_idle() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] {
    return loaded_ && !at_work_ && to_remove_.empty() && unchecked_.empty() && wanted_.empty();
  });
}

std::vector<std::pair<std::string, uint64_t>> Copies::counters() {
  const std::scoped_lock lock(mu_);
  const auto checked =
      std::ranges::count_if(copies_, [](const auto& entry) { return entry.second.is_checked; });
  return {
      {"cache_copies", copies_.size()},   {"cache_copies_checked", static_cast<uint64_t>(checked)},
      {"cache_copies_bytes", bytes_},     {"cache_copies_made", made_},
      {"cache_copies_evicted", evicted_}, {"cache_copies_refused", refused_},
      {"cache_copies_corrupt", corrupt_}, {"cache_copies_faults", faults_}};
}

// ---- LOCKED ----

bool Copies::is_copyable(const WholeFile& file) const noexcept {
  return file.size >= kFileBytesMin && file.size <= bytes_max_ &&
         CopyFiles::place_bytes(file.size) <= bytes_max_;
}

void Copies::note_open(const WholeFile& file) {
  if (opened_without_copy_.size() >= kOpenTimesMax && !opened_without_copy_.contains(file.ino))
    // This forgets all counts, which only delays copies.
    opened_without_copy_.clear();
  OpenTimes& times = opened_without_copy_[file.ino];
  times.before = std::exchange(times.last, ++clock_);
  want(file);
}

void Copies::want(const WholeFile& file) {
  if (Clock::now() < rests_until_ || wanted_.size() >= kWantedMax) return;
  if (std::ranges::find(wanted_, file) != wanted_.end()) return;
  wanted_.push_back(file);
  changed_.notify_all();
}

void Copies::forget(std::unordered_map<uint64_t, Copy>::iterator copy) {
  bytes_ -= CopyFiles::place_bytes(copy->second.file.size);
  std::erase(unchecked_, copy->second.file);
  to_remove_.push_back(copy->second.file);
  copies_.erase(copy);
  changed_.notify_all();
}

// Evicts copies that may go, the longest unopened first; none when that would not make enough room.
bool Copies::make_room(const WholeFile& file) {
  const uint64_t wanted = CopyFiles::place_bytes(file.size);
  if (bytes_ + wanted <= bytes_max_) return true;
  const uint64_t before = opened_without_copy_[file.ino].before;
  std::vector<std::pair<uint64_t, uint64_t>> old;  // time of the last open, inode
  for (const auto& [ino, copy] : copies_) {
    if (copy.users == 0 && copy.opened < before) old.emplace_back(copy.opened, ino);
  }
  std::ranges::sort(old);
  uint64_t left = bytes_;
  size_t count = 0;
  for (; count < old.size() && left + wanted > bytes_max_; ++count) {
    left -= CopyFiles::place_bytes(copies_.at(old[count].second).file.size);
  }
  if (left + wanted > bytes_max_) return false;
  for (size_t at = 0; at < count; ++at) forget(copies_.find(old[at].second));
  evicted_ += count;
  return true;
}

// ---- the thread ----

void Copies::run() {
  lower_priority("braid-copies", kNice);
  (void)::syscall(SYS_ioprio_set, kThisThread, 0, kIdleDisk);
  load();
  std::unique_lock lock(mu_);
  while (is_running()) {
    if (run_next(lock)) continue;
    at_work_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return stopping_ || !to_remove_.empty() || !unchecked_.empty() || !wanted_.empty();
    });
  }
}

// Takes the newest copies first; copies for which no room is left are removed.
void Copies::load() {
  const bool is_there = files_.make_directory() == 0;
  auto found = is_there ? files_.sweep() : std::vector<CopyFiles::Known>();
  std::ranges::sort(found, is_newer);
  const std::scoped_lock lock(mu_);
  for (const auto& known : found) {
    const uint64_t bytes = CopyFiles::place_bytes(known.file.size);
    if (bytes_ + bytes > bytes_max_ || copies_.contains(known.file.ino)) {
      to_remove_.push_back(known.file);
      continue;
    }
    bytes_ += bytes;
    copies_[known.file.ino] = {.file = known.file};
    unchecked_.push_back(known.file);
  }
  loaded_ = true;
}

bool Copies::run_next(std::unique_lock<std::mutex>& lock) {
  if (to_remove_.empty() && unchecked_.empty() && wanted_.empty()) return false;
  at_work_ = true;
  if (!to_remove_.empty()) {
    const auto to_remove = std::exchange(to_remove_, {});
    lock.unlock();
    for (const WholeFile& file : to_remove) files_.remove(file);
    lock.lock();
  } else if (!unchecked_.empty()) {
    check(lock);
  } else {
    make(lock);
  }
  return true;
}

void Copies::check(std::unique_lock<std::mutex>& lock) {
  const WholeFile file = unchecked_.front();
  lock.unlock();
  const auto sound = files_.is_sound(file, pages_, [this] { return is_running(); });
  lock.lock();
  const auto known = copies_.find(file.ino);
  std::erase(unchecked_, file);
  if (!sound || known == copies_.end() || known->second.file != file) return;
  if (*sound) {
    known->second.is_checked = true;
    return;
  }
  ++corrupt_;
  forget(known);
}

void Copies::make(std::unique_lock<std::mutex>& lock) {
  const WholeFile file = wanted_.front();
  lock.unlock();
  const bool has_all = this->has_all(file);
  lock.lock();
  bool may = has_all && !copies_.contains(file.ino);
  if (may && !make_room(file)) {
    ++refused_;
    may = false;
  }
  if (may) {
    const uint64_t bytes = CopyFiles::place_bytes(file.size);
    bytes_ += bytes;
    const auto to_remove = std::exchange(to_remove_, {});  // their space is needed
    lock.unlock();
    for (const WholeFile& other : to_remove) files_.remove(other);
    const int error = write(file);
    if (error != 0) files_.remove(file);
    lock.lock();
    if (error == 0) {
      copies_[file.ino] = {.file = file, .is_checked = true, .opened = clock_};
      opened_without_copy_.erase(file.ino);
      ++made_;
    } else {
      bytes_ -= bytes;
      if (error != -ENODATA && error != -ECANCELED) {
        ++faults_;
        rests_until_ = Clock::now() + kFaultRest;
        wanted_.clear();
        return;
      }
    }
  }
  std::erase(wanted_, file);
}

bool Copies::has_all(const WholeFile& file) {
  for (uint32_t slice = 0; slice < slice_count(file.size); ++slice) {
    if (!store_.has({file.ino, slice}, file.stamp)) return false;
  }
  return true;
}

// -ENODATA: a slice is gone, or is not as expected.
int Copies::write(const WholeFile& file) {
  net::UniqueFd part;
  if (const int error = files_.begin(file, part)) return error;
  SliceSums sums;
  for (uint32_t slice = 0; slice < slice_count(file.size); ++slice) {
    if (!is_running()) return -ECANCELED;
    if (!read_slice(file, slice)) return -ENODATA;
    const uint32_t length = slice_length(file.size, slice);
    sums.push_back(xxh3(pages_.slice().first(length)));
    if (const int error =
            CopyFiles::write_slice(part.get(), slice, pages_.slice().first(padded(length)))) {
      return error;
    }
  }
  return files_.finish(file, sums, part.get());
}

// Reads a slice into pages_.
bool Copies::read_slice(const WholeFile& file, uint32_t slice) {
  const SliceKey key{file.ino, slice};
  const uint32_t length = slice_length(file.size, slice);
  const auto found = store_.find(key, file.stamp);
  if (!found || found->length != length) return false;
  const auto place = pages_.all().first(record_bytes(length));
  const ssize_t count = ::pread(found->segment->bytes.get(), place.data(), place.size(),
                                static_cast<off_t>(found->offset));
  if (count == static_cast<ssize_t>(place.size()) &&
      is_head_of(pages_.head(), key, file.stamp, length) &&
      are_bytes_of(pages_.head(), 0, pages_.slice().first(length))) {
    return true;
  }
  store_.corrupt(key, *found);
  return false;
}

}  // namespace braidfs::cache
