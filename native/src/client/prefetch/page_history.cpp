#include "client/prefetch/page_history.h"

#include <algorithm>

namespace braidfs::client::prefetch {

void PageHistory::read(Plan& plan, For /*whom*/) {
  const CachedExtent& extent = plan.extent();
  FileHistory* const history = extent.length >= kReadMin
                                   ? files_.find_or_add(extent.ino, plan.now())
                                   : files_.find(extent.ino, plan.now());
  if (history == nullptr) return;
  want_windows(plan, history->note(extent.offset, extent.length));
  want_beyond(plan, *history);
}

void PageHistory::closed(uint64_t ino, bool is_last, Table& table) {
  if (!is_last) return;
  files_.drop(ino);
  table.drop(share_, ino);
}

void PageHistory::want_windows(Plan& plan, const FileHistory::Windows& windows) const {
  if (windows.stride == 0 || windows.length == 0) return;
  const CachedExtent& extent = plan.extent();
  const uint64_t count = std::clamp<uint64_t>(kWindowMax / windows.length, 1, kWindowsMax);
  const uint64_t step = std::max(extent.length, kReadMin);
  for (uint64_t number = 0; number < count; ++number) {
    const uint64_t begin = windows.begin + number * windows.stride;
    const uint64_t end = std::min(begin + std::min(windows.length, kWindowMax), extent.file_size);
    for (uint64_t at = begin; at < end; at += step)
      if (!plan.want(share_, at, std::min(at + step, end), Priority::kNear)) return;
  }
}

void PageHistory::want_beyond(Plan& plan, const FileHistory& history) const {
  const uint64_t begin = plan.extent().end();
  const FileHistory::Run run = history.run_before(begin);
  if (run.is_first ? run.bytes < kFirstMin : run.bytes <= kAroundMax) return;
  const uint64_t window = std::min(run.bytes, kPagesAheadMax);
  const uint64_t end = std::min(begin + kPagesAheadMax + kSkipMax, plan.extent().file_size);
  uint64_t ahead = 0;
  for (uint64_t at = begin; at < end && ahead < window;) {
    const Table::Cover next = plan.next(at);
    if (next.begin <= at) {
      ahead += next.end - at;
      at = next.end;
      continue;
    }
    const uint64_t unit_end = (at / FileHistory::kUnit + 1) * FileHistory::kUnit;
    const uint64_t to = std::min({end, unit_end, next.begin});
    const FileHistory::Stretch stretch = history.unasked(at, to);
    at = to;
    if (stretch.begin >= stretch.end) continue;
    const auto priority = ahead < kNearBytes ? Priority::kNear : Priority::kFar;
    const auto asked = static_cast<uint32_t>(stretch.asked);
    if (!plan.want(share_, stretch.begin, stretch.end, priority, asked)) return;
    ahead += stretch.end - stretch.begin;
    at = stretch.end;
  }
}

}  // namespace braidfs::client::prefetch
