#include "client/asked.h"

#include <algorithm>

namespace braidfs::client {

Asked::Windows Asked::note(uint64_t offset, uint32_t length) {
  if (!count(offset, offset + length)) {
    *this = Asked{};
    count(offset, offset + length);
  }
  return window(offset, offset + length);
}

// False: some of it was asked for before.
bool Asked::count(uint64_t offset, uint64_t end) {
  for (uint64_t at = offset; at < end;) {
    const uint64_t unit = at / kUnit;
    const uint64_t to = std::min(end, (unit + 1) * kUnit);
    auto region = regions_.find(unit / kRegion);
    if (region == regions_.end()) {
      if (regions_.size() >= kRegionsMax) regions_.clear();
      region = regions_.try_emplace(unit / kRegion).first;
    }
    uint32_t& bytes = region->second[unit % kRegion];
    if (bytes + (to - at) > kUnit) return false;
    bytes += static_cast<uint32_t>(to - at);
    at = to;
  }
  return true;
}

Asked::Windows Asked::window(uint64_t offset, uint64_t end) {
  if (end_ != 0 && offset + kNear >= begin_ && offset <= end_ + kNear) {  // lanes take READs at once
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
  return is_steady ? Windows{.begin = offset + stride, .length = length_, .stride = stride} : Windows{};
}

Asked::Run Asked::run_before(uint64_t end) const {
  Run run;
  uint64_t bytes = 0;
  for (uint64_t to = end; to > 0 && end - to < kLookBack;) {
    const uint64_t unit = (to - 1) / kUnit;
    const uint64_t from = unit * kUnit;
    bytes += std::min(of_unit(unit), to - from);
    if (bytes * 4 >= (end - from) * 3) run = {.bytes = bytes, .is_first = from == 0};
    to = from;
  }
  return run;
}

uint64_t Asked::of_unit(uint64_t unit) const {
  const auto region = regions_.find(unit / kRegion);
  return region == regions_.end() ? 0 : region->second[unit % kRegion];
}

}  // namespace braidfs::client
