#include "store/layout.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "braidfs/frame.h"

namespace braidfs::store {

namespace {

constexpr uint32_t kPageMagic = 0x43455242;  // "BREC"
constexpr uint16_t kPageFormat = 1;
constexpr std::array<char, 8> kSuperMagic = {'B', 'R', 'A', 'I', 'D', 'T', 'G', 'T'};
constexpr uint32_t kSuperVersion = 2;  // in version 1 the second slot began at 4 TiB
// "BRADLOG1": its entries have no key and no distance.
constexpr uint64_t kSegmentMagicOld = 0x31474f4c44415242;
constexpr uint64_t kSegmentMagic = 0x32474f4c44415242;  // "BRADLOG2"
constexpr uint32_t kPromiseMagic = 0x4d525042;          // "BPRM"
constexpr uint32_t kRunsMax = 64;
constexpr uint32_t kBodyBytesMax = 1 << 20;  // far more than a write of 16 MiB needs

template <typename Sealed>
uint64_t checksum_of(Sealed copy) noexcept {
  copy.checksum = 0;
  return xxh3(std::as_bytes(std::span(&copy, 1)));
}

bool all_zero(const RecordPage& page) noexcept {
  const auto raw = std::as_bytes(std::span(&page, 1));
  return raw[0] == std::byte{0} && std::memcmp(raw.data(), raw.data() + 1, raw.size() - 1) == 0;
}

// Checks the runs. They index arrays of 256 entries, so none may be used before this check.
bool runs_are_sound(const EntryView& view) noexcept {
  uint64_t blocks = 0;
  uint64_t redo_blocks = 0;
  for (const EntryRun& run : view.runs) {
    if (run.group >= kGroupCountMax || run.count == 0 || run.slot > 1) return false;
    if (uint32_t{run.first} + run.count > kGroupBlocks) return false;
    blocks += run.count;
    if ((run.flags & kRunRedo) != 0) redo_blocks += run.count;
  }
  return view.sums.size() == blocks && view.bytes.size() == redo_blocks * kBlockSize;
}

bool redo_bytes_agree(const EntryView& view) noexcept {
  size_t sum = 0;
  size_t at = 0;
  for (const EntryRun& run : view.runs) {
    const bool redo = (run.flags & kRunRedo) != 0;
    for (uint32_t i = 0; i < run.count; ++i, ++sum) {
      if (!redo) continue;
      if (xxh3(view.bytes.subspan(at, kBlockSize)) != view.sums[sum]) return false;
      at += kBlockSize;
    }
  }
  return true;
}

bool header_is_sound(const EntryHeader& header) noexcept {
  const auto kind = static_cast<uint16_t>(header.kind);
  return kind >= 1 && kind <= static_cast<uint16_t>(EntryKind::kDelete) &&
         header.run_count <= kRunsMax * kGroupBlocks && header.object_length <= kObjectBytesMax &&
         header.body_length % 8 == 0 && header.body_length <= kBodyBytesMax &&
         header.bytes_length % kBlockSize == 0 &&
         header.body_length >= header.run_count * sizeof(EntryRun);
}

}  // namespace

uint32_t next_in_map(const ChildMap& map, uint32_t parent, uint32_t group) noexcept {
  uint32_t next = kGroupCountMax;
  for (uint32_t level = 0; level < 3; ++level) {
    for (uint32_t index = 1; index < 256; ++index) {
      const uint32_t child = parent + (index << (8 * level));
      if (child >= next) break;
      if (child >= group && in_map(map.written, {parent, level, index})) next = child;
    }
  }
  return next;
}

void cut_map(ChildMap& map, uint32_t parent, uint32_t group) noexcept {
  for (uint32_t level = 0; level < 3; ++level) {
    for (uint32_t index = 1; index < 256; ++index) {
      if (parent + (index << (8 * level)) < group) continue;
      map.written[level][index / 64] &= ~(uint64_t{1} << (index % 64));
      map.twice[level][index / 64] &= ~(uint64_t{1} << (index % 64));
    }
  }
}

void seal(RecordPage& page) noexcept {
  page.magic = kPageMagic;
  page.format = kPageFormat;
  page.checksum = checksum_of(page);
}

PageState check(const RecordPage& page, ObjectId object, uint32_t group) noexcept {
  if (page.magic == 0 && all_zero(page)) return PageState::kEmpty;
  const bool good = page.magic == kPageMagic && page.format == kPageFormat &&
                    page.checksum == checksum_of(page) && page.file_id == object.file_id &&
                    page.stripe_index == object.stripe_index && page.group == group &&
                    page.slot <= 1 && page.object_length <= kObjectBytesMax;
  return good ? PageState::kValid : PageState::kDamaged;
}

void seal(Superblock& superblock) noexcept {
  superblock.magic = kSuperMagic;
  superblock.version = kSuperVersion;
  superblock.checksum = checksum_of(superblock);
}

std::string refusal(const Superblock& superblock, const Uuid& cluster) {
  if (superblock.magic != kSuperMagic) return "its superblock has the wrong magic number";
  if (superblock.version != kSuperVersion)
    return "its superblock has version " + std::to_string(superblock.version) +
           ", this program knows version " + std::to_string(kSuperVersion);
  if (superblock.checksum != checksum_of(superblock)) return "its superblock is damaged";
  if (superblock.cluster != cluster) return "it belongs to another cluster";
  return {};
}

void encode_entry(EntryHeader header, std::span<const EntryRun> runs,
                  std::span<const uint64_t> sums, uint64_t key, std::vector<std::byte>& encoded) {
  header.magic = kEntryMagic;
  header.run_count = static_cast<uint16_t>(runs.size());
  header.body_length = static_cast<uint32_t>(runs.size_bytes() + sums.size_bytes());
  header.checksum = 0;
  encoded.resize(sizeof header + header.body_length);
  std::byte* at = encoded.data();
  std::memcpy(at, &header, sizeof header);
  if (!runs.empty()) std::memcpy(at + sizeof header, runs.data(), runs.size_bytes());
  if (!sums.empty())
    std::memcpy(at + sizeof header + runs.size_bytes(), sums.data(), sums.size_bytes());
  header.checksum = xxh3(encoded) ^ key;
  std::memcpy(at, &header, sizeof header);
}

bool decode_entry(std::span<const std::byte> raw, uint64_t key, EntryView& view) noexcept {
  EntryHeader& header = view.header;
  view.sealed = view.whole = false;
  if (raw.size() < sizeof header) return false;
  std::memcpy(&header, raw.data(), sizeof header);
  if (header.magic != kEntryMagic || !header_is_sound(header)) return false;
  const size_t sealed = sizeof header + header.body_length;
  if (raw.size() < sealed || raw.size() - sealed < header.bytes_length) return false;
  static thread_local std::vector<std::byte> copy;
  copy.assign(raw.begin(), raw.begin() + static_cast<ptrdiff_t>(sealed));
  std::memset(copy.data() + offsetof(EntryHeader, checksum), 0, sizeof header.checksum);
  if ((xxh3(copy) ^ key) != header.checksum) return false;
  const std::byte* body = raw.data() + sizeof header;
  const size_t runs_length = header.run_count * sizeof(EntryRun);
  view.runs = {reinterpret_cast<const EntryRun*>(body), header.run_count};
  view.sums = {reinterpret_cast<const uint64_t*>(body + runs_length),
               (header.body_length - runs_length) / sizeof(uint64_t)};
  view.bytes = raw.subspan(sealed, header.bytes_length);
  view.length = sealed + header.bytes_length;
  view.sealed = runs_are_sound(view);
  view.whole = view.sealed && redo_bytes_agree(view);
  return view.whole;
}

uint64_t segment_key(const Uuid& uuid, uint64_t number) noexcept {
  std::array<std::byte, sizeof uuid + sizeof number> bytes{};
  std::memcpy(bytes.data(), uuid.data(), sizeof uuid);
  std::memcpy(bytes.data() + sizeof uuid, &number, sizeof number);
  return xxh3(bytes);
}

void seal(SegmentHeader& header) noexcept {
  header.magic = kSegmentMagic;
  header.checksum = checksum_of(header);
}

SegmentState check(const SegmentHeader& header, uint64_t number, const Uuid& uuid) noexcept {
  const bool old = header.magic == kSegmentMagicOld;
  if ((!old && header.magic != kSegmentMagic) || header.checksum != checksum_of(header) ||
      header.number != number || header.uuid != uuid)
    return SegmentState::kDamaged;
  return old ? SegmentState::kValidOld : SegmentState::kValid;
}

void encode_promises(uint64_t durable_sequence, std::span<const Promise> promises, uint64_t key,
                     std::vector<std::byte>& encoded) {
  PromiseHeader header{.magic = kPromiseMagic,
                       .count = static_cast<uint32_t>(promises.size()),
                       .durable_sequence = durable_sequence};
  encoded.resize(sizeof header + promises.size_bytes());
  std::memcpy(encoded.data(), &header, sizeof header);
  if (!promises.empty())
    std::memcpy(encoded.data() + sizeof header, promises.data(), promises.size_bytes());
  header.checksum = xxh3(encoded) ^ key;
  std::memcpy(encoded.data(), &header, sizeof header);
}

size_t decode_promises(std::span<const std::byte> raw, uint64_t key, PromiseHeader& header,
                       std::span<const Promise>& promises) noexcept {
  if (raw.size() < sizeof header) return 0;
  std::memcpy(&header, raw.data(), sizeof header);
  if (header.magic != kPromiseMagic ||
      header.count > (raw.size() - sizeof header) / sizeof(Promise))
    return 0;
  const size_t length = sizeof header + header.count * sizeof(Promise);
  std::vector<std::byte> copy(raw.begin(), raw.begin() + static_cast<ptrdiff_t>(length));
  std::memset(copy.data() + offsetof(PromiseHeader, checksum), 0, sizeof header.checksum);
  if ((xxh3(copy) ^ key) != header.checksum) return 0;
  promises = {reinterpret_cast<const Promise*>(raw.data() + sizeof header), header.count};
  return length;
}

std::string object_directory(ObjectId object) {
  const uint64_t hash = xxh3(std::as_bytes(std::span(&object.file_id, 1)));
  char text[16];
  std::snprintf(text, sizeof text, "objects/%02x", static_cast<unsigned>(hash & 0xff));
  return text;
}

std::string object_path(ObjectId object) {
  char text[32];
  std::snprintf(text, sizeof text, "/%016lx.%x", static_cast<unsigned long>(object.file_id),
                object.stripe_index);
  return object_directory(object) + text;
}

bool parse_object_name(std::string_view name, ObjectId& object) noexcept {
  if (name.size() < 18 || name[16] != '.') return false;
  const char* const end = name.data() + name.size();
  const auto file = std::from_chars(name.data(), name.data() + 16, object.file_id, 16);
  const auto stripe = std::from_chars(name.data() + 17, end, object.stripe_index, 16);
  return file.ptr == name.data() + 16 && stripe.ec == std::errc{} && stripe.ptr == end;
}

uint64_t zero_block_sum() noexcept {
  static const uint64_t sum = [] {
    const std::array<std::byte, kBlockSize> zeros{};
    return xxh3(zeros);
  }();
  return sum;
}

}  // namespace braidfs::store
