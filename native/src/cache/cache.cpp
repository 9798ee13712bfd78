#include "cache/cache.h"

#include <filesystem>
#include <system_error>

#include "cache/disk.h"

namespace braidfs::cache {

namespace {

constexpr int kNice = 10;  // lanes have precedence
constexpr const char* kCopiesFolder = "/whole";

uint64_t room_of(const Slice& slice) {
  uint64_t bytes = 0;
  for (const Part& part : slice.parts) bytes += part.place.size();
  return bytes;
}

}  // namespace

std::unique_ptr<Cache> Cache::open(const StoreSettings& settings, std::string& reason) {
  auto store = Store::open(settings, reason);
  return store ? std::unique_ptr<Cache>(new Cache(std::move(store), settings)) : nullptr;
}

// Without room for copies, the copies of an earlier start are removed: they would exceed the
// cache's size.
Cache::Cache(std::unique_ptr<Store> store, const StoreSettings& settings)
    : store_(std::move(store)) {
  const std::string folder = settings.directory + kCopiesFolder;
  if (settings.copies_bytes_max > 0) {
    copies_ =
        std::make_unique<Copies>(folder, settings.copies_bytes_max, settings.cluster, *store_);
  } else {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  writer_ = std::thread([this] { run(); });
}

void Cache::offer(const SliceKey& key, uint64_t stamp, uint32_t length, Part part) {
  const std::scoped_lock lock(mu_);
  auto slice = assembly_.add(key, stamp, length, std::move(part));
  if (!slice || stopping_ || !store_->wants(key, stamp, length)) return;
  const uint64_t bytes = room_of(*slice);
  if (queue_bytes_ + bytes > kQueueBytesMax) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue_bytes_ += bytes;
  queue_.push_back(std::move(*slice));
  changed_.notify_all();
}

void Cache::wait_idle() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return queue_bytes_ == 0; });
}

void Cache::stop() {
  if (copies_) copies_->stop();
  {
    const std::scoped_lock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
}

void Cache::run() {
  lower_priority("braid-cache", kNice);
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::vector<Slice> slices;
    uint64_t bytes = 0;
    while (!queue_.empty() && slices.size() < Store::kRunSlicesMax && bytes < Store::kRunBytesMax) {
      slices.push_back(std::move(queue_.front()));
      bytes += room_of(slices.back());
      queue_.pop_front();
    }
    lock.unlock();
    store_->put(slices);
    slices.clear();
    lock.lock();
    queue_bytes_ -= bytes;
    changed_.notify_all();
  }
}

std::vector<std::pair<std::string, uint64_t>> Cache::counters() {
  const Store::Counts counts = store_->counts();
  std::vector<std::pair<std::string, uint64_t>> all = {
      {"cache_records", counts.records},
      {"cache_bytes", counts.bytes},
      {"cache_stores", counts.written},
      {"cache_bytes_stored", counts.bytes_written},
      {"cache_evictions", counts.evicted},
      {"cache_refusals", counts.refused},
      {"cache_corrupt", counts.corrupt},
      {"cache_faults", counts.faults},
      {"cache_dropped", dropped_.load(std::memory_order_relaxed)}};
  if (copies_) {
    for (auto& counter : copies_->counters()) all.push_back(std::move(counter));
  }
  return all;
}

}  // namespace braidfs::cache
