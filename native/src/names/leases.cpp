// Names: what a recall invalidates, here and in the kernel.
#include <algorithm>
#include <array>
#include <iterator>

#include "names/names.h"

namespace braidfs::names {

namespace {

// How long a process takes at most to store what its LOOKUP was told, and the later attempts for a
// process that was held up.
constexpr auto kSettles = std::chrono::milliseconds(20);
constexpr std::array kSettlesLate{std::chrono::milliseconds(200), std::chrono::milliseconds(2000)};

}  // namespace

// Notifications of a recall: to be sent now, once more, and behind its mark, which is not reached
// before `until`.
struct Names::LostBatch {
  std::vector<fuse::Notification> now, again, behind;
  DentryTable::Clock::time_point until{};
};

// The kernel caches what a LOOKUP was told a moment ago when its process runs again: such names
// expire once more before the lease is returned, and a few times after, for a process that was held
// up.
size_t Names::drop_names(uint64_t ino, LostBatch& lost) {
  auto dropped = dentries_.drop(ino, DentryTable::Clock::now());
  for (const std::string& name : dropped.cached)
    lost.now.push_back(session_.name_expiry(ino, name));
  for (const std::string& name : dropped.settling) {
    fuse::Notification again = session_.name_expiry(ino, name);
    again.not_before = dropped.looked_at + kSettles;
    lost.again.push_back(again);
    for (const auto late : kSettlesLate) {
      again.not_before = dropped.looked_at + late;
      lost.behind.push_back(again);
    }
  }
  if (!dropped.settling.empty()) lost.until = std::max(lost.until, dropped.looked_at + kSettles);
  return dropped.cached.size();
}

size_t Names::drop_leases(uint64_t token, std::span<const LostLease> lost, uint32_t facets) {
  LostBatch batch;
  uint32_t queues = lost.empty() ? fuse::kAllQueues : 0;
  if ((facets & kLeaseMeta) != 0 || facets == 0) queues |= 1u << fuse::kAttributesQueue;
  if ((facets & kLeaseData) != 0 || facets == 0) queues |= 1u << fuse::kPagesQueue;
  size_t names = 0;
  for (const auto& [ino, locked] : lost) {
    if ((facets & kLeaseEntries) != 0) {
      names += drop_names(ino, batch);
      queues |= 1u << fuse::names_queue(session_.nodeid(ino));
    }
    if ((facets & kLeaseMeta) != 0) {
      batch.now.push_back(fuse::Notification::of_inode(session_.nodeid(ino), -1, 0));
      batch.now.back().patient = attributes_.drop(ino);
    }
    if ((facets & kLeaseData) != 0)
      fuse::invalidate_pages(batch.now, batch.behind, session_.nodeid(ino), locked);
  }
  std::ranges::move(batch.again, std::back_inserter(batch.now));
  batch.now.push_back(fuse::Notification::mark_of(token, queues));
  batch.now.back().not_before = batch.until;
  std::ranges::move(batch.behind, std::back_inserter(batch.now));
  session_.notify(std::move(batch.now));
  return names;
}

}  // namespace braidfs::names
