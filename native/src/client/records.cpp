#include "client/records.h"

#include <algorithm>
#include <cstring>

#include "names/attribute_record.h"

namespace braidfs::client {

namespace {

template <typename T>
T load(std::span<const std::byte> bytes, size_t offset) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

constexpr size_t kLayoutHead = 32;
constexpr uint8_t kVersion = 1;            // one replica, of generation 0
constexpr uint8_t kReplicatedVersion = 2;  // places for replicas
constexpr size_t kReplicatedHead = 40;
constexpr uint32_t kInline = 1;  // a flag: the file's bytes follow the targets
constexpr uint64_t kSizeMax = (uint64_t{1} << 63) - 1;

bool has_whole_tail(std::span<const std::byte> layout, size_t record_size) noexcept {
  if ((load<uint32_t>(layout, 20) & kInline) == 0) return layout.size() == record_size;
  return layout.size() > record_size && layout.size() - record_size <= limits::kInlineLengthMax;
}

// What stands before the inline bytes.
size_t record_size(const FileView& view) noexcept {
  const size_t count = size_t{view.stripe_width} * view.places;
  return view.is_replicated ? kReplicatedHead + 8 * count : kLayoutHead + 4 * count;
}

bool plausible(const FileView& view, std::span<const std::byte> layout) noexcept {
  const uint32_t places_max = view.is_replicated ? limits::kReplicaPlacesMax : 1;
  return load<uint8_t>(layout, 0) == (view.is_replicated ? kReplicatedVersion : kVersion) &&
         view.places >= 1 && view.places <= places_max && view.stripe_width >= 1 &&
         view.stripe_width <= limits::kStripeWidthMax &&
         has_whole_tail(layout, record_size(view)) && view.chunk_size >= limits::kChunkSizeMin &&
         view.chunk_size <= limits::kChunkSizeMax && view.chunk_size % limits::kChunkSizeMin == 0;
}

// The head of a record of version 2 behind that of the other one: the highest generation that was
// ever given out, and how many replicas there are to be.
bool plausible_head(const FileView& view, std::span<const std::byte> layout) noexcept {
  const auto generation_last = load<uint32_t>(layout, 32);
  const auto wanted = load<uint32_t>(layout, 36);  // with the three bytes behind it, which are 0
  return wanted >= 1 && wanted <= limits::kReplicaCountMax &&
         generation_last <= limits::kGenerationMax && (view.places > 1 || generation_last > 0);
}

// Takes the rows of one stripe: its replicas come first. False: it has none, two on one target, or
// a generation that was never given out.
bool take_stripe(FileView& view, std::span<const std::byte> layout, uint32_t stripe) noexcept {
  const std::span taken = std::span(view.rows).subspan(size_t{stripe} * view.places, view.places);
  size_t count = 0;
  for (uint32_t place = 0; place < view.places; ++place) {
    const size_t at = kReplicatedHead + 8 * (size_t{stripe} * view.places + place);
    const auto target = load<uint32_t>(layout, at);
    const auto generation = load<uint32_t>(layout, at + 4);
    if (generation > load<uint32_t>(layout, 32)) return false;
    if (target == FileView::kVacant) continue;
    const auto is_there = [&](const Replica& other) { return other.target == target; };
    if (std::ranges::any_of(taken.first(count), is_there)) return false;
    taken[count++] = {target, object_number(stripe, generation)};
  }
  return count > 0;
}

bool take_rows(FileView& view, std::span<const std::byte> layout) {
  view.rows.resize(size_t{view.stripe_width} * view.places);
  if (view.is_replicated && !plausible_head(view, layout)) return false;
  for (uint32_t stripe = 0; stripe < view.stripe_width; ++stripe) {
    if (!view.is_replicated) {
      view.rows[stripe] = {load<uint32_t>(layout, kLayoutHead + size_t{4} * stripe), stripe};
    } else if (!take_stripe(view, layout, stripe)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<Attributes> decode_attributes(std::span<const std::byte> record) noexcept {
  if (record.size() != record::kBytes) return std::nullopt;
  const Attributes attributes{.ino = load<uint64_t>(record, record::kIno),
                              .size = load<uint64_t>(record, record::kSize),
                              .data_version = load<uint64_t>(record, record::kDataVersion),
                              .change_version = load<uint64_t>(record, record::kChangeVersion),
                              .mtime_ns = load<int64_t>(record, record::kMtime),
                              .mode = load<uint32_t>(record, record::kMode),
                              .gid = load<uint32_t>(record, record::kGid),
                              .is_immutable = record::is_immutable(record)};
  if (attributes.ino == 0 || attributes.size > kSizeMax) return std::nullopt;
  return attributes;
}

std::optional<FileView> decode_view(std::span<const std::byte> layout,
                                    std::span<const std::byte> capability) {
  if (layout.size() < kLayoutHead || capability.size() != sizeof(Capability)) return std::nullopt;
  FileView view;
  view.is_replicated = load<uint8_t>(layout, 0) == kReplicatedVersion;
  view.places = load<uint8_t>(layout, 1);
  view.stripe_width = load<uint16_t>(layout, 2);
  view.chunk_size = load<uint32_t>(layout, 4);
  view.file_id = load<uint64_t>(layout, 8);
  view.truncate_epoch = load<uint32_t>(layout, 16);
  view.durable_stripes = load<uint64_t>(layout, 24);
  if (!plausible(view, layout) || !take_rows(view, layout)) return std::nullopt;
  const auto behind = layout.subspan(record_size(view));
  view.inline_bytes.assign(reinterpret_cast<const char*>(behind.data()), behind.size());
  Capability decoded;
  std::memcpy(&decoded, capability.data(), sizeof decoded);
  if (decoded.file_id != view.file_id) return std::nullopt;
  std::copy(capability.begin(), capability.end(), view.capability.begin());
  return view;
}

uint64_t stamp_of(const Attributes& attributes, const FileView& view) noexcept {
  const std::array<uint64_t, 4> parts{view.file_id, attributes.data_version,
                                      static_cast<uint64_t>(attributes.mtime_ns), attributes.size};
  return xxh3(std::as_bytes(std::span(parts))) | 1;
}

Span first_span(const FileView& view, uint64_t begin, uint64_t end) noexcept {
  const uint64_t chunk = begin / view.chunk_size;
  const uint64_t within = begin % view.chunk_size;
  const uint64_t length = std::min<uint64_t>(view.chunk_size - within, end - begin);
  return {.begin = begin,
          .length = static_cast<uint32_t>(length),
          .chunk = chunk,
          .stripe_index = static_cast<uint32_t>(chunk % view.stripe_width),
          .object_offset = chunk / view.stripe_width * view.chunk_size + within};
}

}  // namespace braidfs::client
