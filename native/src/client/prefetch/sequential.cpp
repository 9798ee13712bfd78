#include "client/prefetch/sequential.h"

#include <algorithm>
#include <bit>

namespace braidfs::client::prefetch {

void Sequential::read(Plan& plan, For /*whom*/) {
  Runs* const runs = files_.find_or_add(plan.extent().ino, plan.now());
  if (runs != nullptr) want(plan, run_of(*runs, plan.extent(), plan.now()));
}

void Sequential::closed(uint64_t ino, bool is_last, Table& table) {
  if (!is_last) return;
  files_.drop(ino);
  table.drop(share_, ino);
}

// Whether the READ belongs to that run. If so, the run is advanced by it.
bool Sequential::follow(Run& run, const CachedExtent& extent) {
  if (run.size == 0 || (extent.length != run.size && extent.end() != extent.file_size))
    return false;
  if (extent.offset < run.next) {  // the program asks again, or later READs overtook this one
    return run.next - extent.offset <= uint64_t{run.size} * kEarlyMax &&
           (run.next - extent.offset) % run.size == 0;
  }
  const uint64_t behind = extent.offset - run.next;
  if (behind % run.size != 0 || behind / run.size > kEarlyMax) return false;
  if (behind > 0) {
    run.early |= 1u << (behind / run.size - 1);
    return true;
  }
  const auto steps = static_cast<uint32_t>(std::countr_one(run.early)) + 1;
  run.early = steps < 32 ? run.early >> steps : 0;
  run.next += uint64_t{run.size} * steps;
  run.count += steps;
  return true;
}

// Returns the run that the READ belongs to; if there is none, the run that was not used for
// longest, which begins anew.
Sequential::Run& Sequential::run_of(Runs& runs, const CachedExtent& extent, Clock::time_point now) {
  Run* oldest = &runs.front();
  for (Run& run : runs) {
    if (follow(run, extent)) {
      run.used = now;
      return run;
    }
    if (run.used < oldest->used) oldest = &run;
  }
  *oldest = {
      .size = extent.length, .count = 1, .next = extent.end(), .ahead = extent.end(), .used = now};
  return *oldest;
}

void Sequential::want(Plan& plan, Run& run) const {
  if (run.count < kRunMin) return;
  const uint64_t file_size = plan.extent().file_size;
  const uint64_t window = std::min(uint64_t{run.count} * run.size, kWindowMax);
  const uint64_t end = std::min(run.next + window, file_size);
  uint64_t at = std::max(run.next, run.ahead);
  if (run.early != 0)  // these READs have come already
    at = std::max(at, run.next + uint64_t{run.size} * (std::bit_width(run.early) + 1u));
  for (; at < end; at += run.size) {
    const auto priority = at - run.next < kNearBytes ? Priority::kNear : Priority::kFar;
    if (!plan.want(share_, at, std::min(at + run.size, file_size), priority)) return;
    run.ahead = at + run.size;
  }
}

}  // namespace braidfs::client::prefetch
