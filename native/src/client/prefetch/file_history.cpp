#include "client/prefetch/file_history.h"

#include <algorithm>

namespace braidfs::client::prefetch {

FileHistory::Windows FileHistory::note(uint64_t offset, uint32_t length) {
  if (!count(offset, offset + length)) {
    *this = FileHistory{};
    count(offset, offset + length);
  }
  return window(offset, offset + length);
}

// Counts these pages. False: some of them were asked for before.
bool FileHistory::count(uint64_t offset, uint64_t end) {
  for (uint64_t at = offset; at < end;) {
    const uint64_t number = at / kUnit;
    const uint64_t to = std::min(end, (number + 1) * kUnit);
    auto region = regions_.find(number / kRegion);
    if (region == regions_.end()) {
      if (regions_.size() >= kRegionsMax) regions_.clear();
      region = regions_.try_emplace(number / kRegion).first;
    }
    Unit& unit = region->second[number % kRegion];
    const auto first = static_cast<uint8_t>(at % kUnit / kPage);
    const auto last = static_cast<uint8_t>((to - 1) % kUnit / kPage);
    const uint32_t pages = last - first + 1u;
    if (unit.pages + pages > kUnit / kPage) return false;
    unit = {.pages = static_cast<uint16_t>(unit.pages + pages),
            .first = unit.pages == 0 ? first : std::min(unit.first, first),
            .last = std::max(unit.last, last)};
    at = to;
  }
  return true;
}

FileHistory::Windows FileHistory::window(uint64_t offset, uint64_t end) {
  // The READ belongs to the newest window, maybe out of order: several lanes take READs.
  if (end_ != 0 && offset + kNear >= begin_ && offset <= end_ + kNear) {
    const uint64_t earlier = begin_ - std::min(begin_, offset);
    stride_ -= std::min(stride_, earlier);
    begin_ -= earlier;
    end_ = std::max(end_, end);
    return {};
  }
  const uint64_t stride = offset > begin_ && offset - begin_ <= kStrideMax ? offset - begin_ : 0;
  const bool is_steady = stride != 0 && stride == stride_;
  length_ = end_ - begin_;
  stride_ = end_ != 0 ? stride : 0;
  begin_ = offset;
  end_ = end;
  return is_steady ? Windows{.begin = offset + stride, .length = length_, .stride = stride}
                   : Windows{};
}

FileHistory::Run FileHistory::run_before(uint64_t end) const {
  Run run;
  uint64_t bytes = 0;
  for (uint64_t to = end; to > 0 && end - to < kLookBack;) {
    const uint64_t number = (to - 1) / kUnit;
    const uint64_t from = number * kUnit;
    bytes += std::min(unit(number).pages * kPage, to - from);
    if (bytes * 4 >= (end - from) * 3) run = {.bytes = bytes, .is_first = from == 0};
    to = from;
  }
  return run;
}

FileHistory::Stretch FileHistory::unasked(uint64_t at, uint64_t to) const {
  const Unit had = unit(at / kUnit);
  // [begin, end) reaches from the first page of this unit that was asked for to the last one.
  const uint64_t begin = at - at % kUnit + had.first * kPage;
  const uint64_t end = begin + had.span() * kPage;
  if (at < begin) return {.begin = at, .end = std::min(to, begin)};
  if (at < end) {
    if (had.pages * 2 <= had.span())
      return {.begin = at, .end = std::min(to, end), .asked = had.pages * kPage};
    at = std::min(to, end);
  }
  return {.begin = at, .end = to};
}

FileHistory::Unit FileHistory::unit(uint64_t number) const {
  const auto region = regions_.find(number / kRegion);
  return region == regions_.end() ? Unit{} : region->second[number % kRegion];
}

}  // namespace braidfs::client::prefetch
