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
constexpr uint32_t kInline = 1;  // a flag: the file's bytes follow the targets
constexpr uint64_t kSizeMax = (uint64_t{1} << 63) - 1;

bool has_whole_tail(std::span<const std::byte> layout, size_t record_size) noexcept {
  if ((load<uint32_t>(layout, 20) & kInline) == 0) return layout.size() == record_size;
  return layout.size() > record_size && layout.size() - record_size <= limits::kInlineLengthMax;
}

bool plausible(const FileView& view, std::span<const std::byte> layout) noexcept {
  return load<uint8_t>(layout, 0) == 1 && load<uint8_t>(layout, 1) == 1 && view.stripe_width >= 1 &&
         view.stripe_width <= limits::kStripeWidthMax &&
         has_whole_tail(layout, kLayoutHead + size_t{4} * view.stripe_width) &&
         view.chunk_size >= limits::kChunkSizeMin && view.chunk_size <= limits::kChunkSizeMax &&
         view.chunk_size % limits::kChunkSizeMin == 0;
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
  view.stripe_width = load<uint16_t>(layout, 2);
  view.chunk_size = load<uint32_t>(layout, 4);
  view.file_id = load<uint64_t>(layout, 8);
  view.truncate_epoch = load<uint32_t>(layout, 16);
  view.durable_stripes = load<uint64_t>(layout, 24);
  if (!plausible(view, layout)) return std::nullopt;
  view.targets.resize(view.stripe_width);
  std::memcpy(view.targets.data(), layout.data() + kLayoutHead, size_t{4} * view.stripe_width);
  const auto behind = layout.subspan(kLayoutHead + size_t{4} * view.stripe_width);
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
