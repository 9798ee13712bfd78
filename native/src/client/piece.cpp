#include "client/piece.h"

#include <algorithm>

namespace braidfs::client {

bool Piece::may_take(uint64_t from, uint64_t to) const noexcept {
  if (state != PieceState::kFilling || from < window || from >= limit()) return false;
  const uint64_t last = std::min(to, limit());
  return borders(from, last) || (coalesces && gaps.size() < kGapsMax);
}

bool Piece::borders(uint64_t from, uint64_t to) const noexcept {
  if (from > end || to < begin) return false;
  return std::ranges::none_of(gaps,
                              [&](const Gap& gap) { return from > gap.begin && to < gap.end; });
}

void Piece::took(uint64_t from, uint64_t to) {
  if (from > end) {
    gaps.push_back({end, from});
  } else if (to < begin) {
    gaps.insert(gaps.begin(), {to, begin});
  } else if (!gaps.empty()) {
    std::vector<Gap> left;
    for (const Gap& gap : gaps) {
      if (gap.end <= from || gap.begin >= to) {
        left.push_back(gap);
        continue;
      }
      if (gap.begin < from) left.push_back({gap.begin, from});
      if (to < gap.end) left.push_back({to, gap.end});
    }
    gaps.swap(left);
  }
  begin = std::min(begin, from);
  end = std::max(end, to);
}

void Piece::cut(uint64_t size) noexcept {
  end = size;
  while (!gaps.empty() && gaps.back().end >= size) {
    end = std::min(end, gaps.back().begin);
    gaps.pop_back();
  }
}

void Piece::aim(const FileView& view) noexcept {
  const auto replicas = view.replicas(stripe_index);
  if (!view.is_replicated || file_id != view.file_id) acknowledged.clear();
  acknowledged.keep(replicas);
  file_id = view.file_id;
  outcome = {};
  for (const Replica& replica : replicas) {
    if (!acknowledged.by(replica)) outcome.ones[outcome.count++] = {.replica = replica};
  }
}

bool Piece::has_all(uint64_t from, uint64_t to) const noexcept {
  if (from < begin || to > end) return false;
  return std::ranges::none_of(gaps,
                              [&](const Gap& gap) { return from < gap.end && to > gap.begin; });
}

}  // namespace braidfs::client
