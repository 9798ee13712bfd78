#include "cache/slice_assembly.h"

#include <algorithm>
#include <utility>

namespace braidfs::cache {

namespace {

bool is_part(const Part& part, uint32_t length) {
  const uint64_t end = uint64_t{part.begin} + part.length;
  const bool ends_well = end == length || (end < length && end % kBlock == 0);
  return part.length > 0 && part.begin % kBlock == 0 && ends_well && length <= kSliceBytes &&
         part.place.size() >= padded(part.length);
}

bool overlap(const Part& one, const Part& other) {
  return one.begin < other.begin + other.length && other.begin < one.begin + one.length;
}

uint64_t room_of(const Slice& slice) {
  uint64_t bytes = 0;
  for (const Part& part : slice.parts) bytes += part.place.size();
  return bytes;
}

}  // namespace

std::list<SliceAssembly::Begun>::iterator SliceAssembly::find_begun(const SliceKey& key,
                                                                    uint64_t stamp) {
  const auto found =
      std::ranges::find_if(begun_, [&](const Begun& begun) { return begun.slice.key == key; });
  if (found == begun_.end() || found->slice.stamp == stamp) return found;
  give_up(found);
  return begun_.end();
}

void SliceAssembly::give_up(std::list<Begun>::iterator which) {
  bytes_ -= room_of(which->slice);
  begun_.erase(which);
}

std::optional<Slice> SliceAssembly::add(const SliceKey& key, uint64_t stamp, uint32_t length,
                                        Part part) {
  if (!is_part(part, length)) return std::nullopt;
  Slice whole{key, stamp, length, {}};
  if (part.length == length) {
    whole.parts.push_back(std::move(part));
    return whole;
  }
  auto to = find_begun(key, stamp);
  if (to == begun_.end()) {
    if (part.begin != 0 && part.length < kBeginsBytes) return std::nullopt;
    to = begun_.insert(begun_.end(), {std::move(whole), 0});
  } else if (to->slice.length != length ||
             std::ranges::any_of(to->slice.parts,
                                 [&](const Part& known) { return overlap(known, part); })) {
    return std::nullopt;
  }
  to->filled += part.length;
  bytes_ += part.place.size();
  to->slice.parts.push_back(std::move(part));
  if (to->filled == length) {
    Slice done = std::move(to->slice);
    bytes_ -= room_of(done);
    begun_.erase(to);
    std::ranges::sort(done.parts, {}, &Part::begin);
    return done;
  }
  while (begun_.size() > kSlicesMax || bytes_ > kBytesMax) give_up(begun_.begin());
  return std::nullopt;
}

}  // namespace braidfs::cache
