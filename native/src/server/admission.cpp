#include "server/admission.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace braidfs::server {

namespace {

constexpr OpSpec kReadSpec{
    .capability = true, .range = true, .rights = kRightRead, .must_exist = true, .undropped = true};
constexpr OpSpec kWriteSpec{.payload = true,
                            .capability = true,
                            .range = true,
                            .rights = kRightWrite,
                            .must_exist = true,
                            .undropped = true};
constexpr OpSpec kSyncSpec{.capability = true, .undropped = true};
constexpr OpSpec kTruncateSpec{.metaserver_only = true, .must_exist = true, .undropped = true};
constexpr OpSpec kRaiseEpochSpec{.metaserver_only = true, .must_exist = true, .undropped = true};
constexpr OpSpec kPunchSpec{.capability = true,
                            .range = true,
                            .rights = kRightWrite,
                            .must_exist = true,
                            .undropped = true};
constexpr OpSpec kCopySpec{.capability = true,
                           .range = true,
                           .rights = kRightWrite,
                           .source = true,
                           .must_exist = true,
                           .undropped = true};
constexpr OpSpec kStatSpec{.capability = true, .rights = kRightRead};
constexpr OpSpec kSeekSpec{.capability = true, .rights = kRightRead, .undropped = true};
constexpr OpSpec kServerSpec{.metaserver_only = true};  // DELETE, FENCE
constexpr OpSpec kDeleteAllSpec{
    .metaserver_only = true, .names_max = limits::kDeleteAllMax, .name_bytes = sizeof(ObjectName)};
constexpr OpSpec kDropNamesSpec{
    .metaserver_only = true, .names_max = limits::kDropNamesMax, .name_bytes = sizeof(ObjectName)};
constexpr OpSpec kFetchSpec{.names_max = limits::kFetchMax, .name_bytes = sizeof(FetchedObject)};
constexpr OpSpec kPingSpec{};

constexpr uint64_t kOffsetMax = std::numeric_limits<int64_t>::max();

bool flags_fit(const FrameHeader& header, const OpSpec& spec) {
  if ((header.flags & (kFlagReply | kFlagReplay | kFlagOneway)) != 0) return false;
  if (((header.flags & kFlagSums) != 0) != spec.payload) return false;
  if ((header.flags & kFlagRaw) != 0 && header.op != static_cast<uint8_t>(Op::kRead)) return false;
  if ((header.flags & kFlagMustExist) != 0 && !spec.must_exist) return false;
  return (header.flags & kFlagCapability) == 0 || spec.capability;
}

bool range_fits(const FrameHeader& header, const OpSpec& spec) {
  if (header.offset > kOffsetMax && header.op != static_cast<uint8_t>(Op::kFence) &&
      header.op != static_cast<uint8_t>(Op::kSync)) {
    return false;
  }
  if (spec.names_max > 0) return header.length > 0 && header.length <= spec.names_max;
  if (!spec.range) return true;
  if (header.length == 0 || header.length > kOffsetMax - header.offset) return false;
  if (header.op == static_cast<uint8_t>(Op::kPunch)) return true;
  if (spec.source && (header.offset | header.length) % limits::kBlockSize != 0) return false;
  return header.length <= limits::kFramePayloadLengthMax;
}

uint32_t body_length_of(const FrameHeader& header, const OpSpec& spec) {
  uint32_t length = 0;
  if ((header.flags & kFlagCapability) != 0) length += sizeof(Capability);
  if (spec.payload) length += 8 * blocks_touched(header.offset, header.length);
  if (spec.source) length += sizeof(CopySource) + length;  // capabilities: both or none
  length += header.length * spec.name_bytes;
  return length;
}

}  // namespace

const OpSpec* spec_of(uint8_t op) {
  switch (static_cast<Op>(op)) {
    case Op::kPing:
      return &kPingSpec;
    case Op::kRead:
      return &kReadSpec;
    case Op::kWrite:
      return &kWriteSpec;
    case Op::kSync:
      return &kSyncSpec;
    case Op::kTruncate:
      return &kTruncateSpec;
    case Op::kPunch:
      return &kPunchSpec;
    case Op::kCopy:
      return &kCopySpec;
    case Op::kStat:
      return &kStatSpec;
    case Op::kSeek:
      return &kSeekSpec;
    case Op::kDelete:
      return &kServerSpec;
    case Op::kFence:
      return &kServerSpec;
    case Op::kDeleteAll:
      return &kDeleteAllSpec;
    case Op::kFetch:
      return &kFetchSpec;
    case Op::kRaiseEpoch:
      return &kRaiseEpochSpec;
    case Op::kDropNames:
      return &kDropNamesSpec;
  }
  return nullptr;
}

Status shape(const FrameHeader& header, Purpose purpose) {
  const OpSpec* spec = spec_of(header.op);
  if (spec == nullptr || !flags_fit(header, *spec)) return Status::kBadRequest;
  if (spec->metaserver_only && purpose != Purpose::kServer) return Status::kBadRequest;
  if (stripe_of(header.stripe_index) >= limits::kStripeWidthMax) return Status::kBadRequest;
  if (!range_fits(header, *spec)) return Status::kBadRequest;
  if (header.payload_length != (spec->payload ? header.length : 0)) return Status::kBadRequest;
  if (header.body_length != body_length_of(header, *spec)) return Status::kBadRequest;
  return Status::kOk;
}

RequestBody body_of(const FrameHeader& header, std::span<const std::byte> body) {
  RequestBody parts;
  if ((header.flags & kFlagCapability) != 0) {
    parts.capability.emplace();
    std::memcpy(&*parts.capability, body.data(), sizeof(Capability));
    body = body.subspan(sizeof(Capability));
  }
  if (!spec_of(header.op)->source) {
    parts.sums = body;
    return parts;
  }
  parts.source.emplace();
  std::memcpy(&*parts.source, body.data(), sizeof(CopySource));
  body = body.subspan(sizeof(CopySource));
  if (!body.empty()) {
    parts.source_capability.emplace();
    std::memcpy(&*parts.source_capability, body.data(), sizeof(Capability));
  }
  return parts;
}

std::vector<store::ObjectId> names_of(std::span<const std::byte> body) {
  std::vector<store::ObjectId> names;
  names.reserve(body.size() / sizeof(ObjectName));
  for (; !body.empty(); body = body.subspan(sizeof(ObjectName))) {
    ObjectName name;
    std::memcpy(&name, body.data(), sizeof(name));
    if (stripe_of(name.stripe_index) >= limits::kStripeWidthMax || name.reserved != 0) return {};
    names.push_back({name.file_id, name.stripe_index});
  }
  return names;
}

std::vector<FetchedObject> fetched_of(std::span<const std::byte> body) {
  std::vector<FetchedObject> fetched(body.size() / sizeof(FetchedObject));
  if (!fetched.empty())
    std::memcpy(fetched.data(), body.data(), fetched.size() * sizeof(FetchedObject));
  const bool can_be = std::ranges::all_of(fetched, [](const FetchedObject& object) {
    return stripe_of(object.stripe_index) < limits::kStripeWidthMax && object.length > 0 &&
           object.length <= limits::kFetchLengthMax;
  });
  return can_be ? fetched : std::vector<FetchedObject>{};
}

bool source_fits(const FrameHeader& header, const CopySource& source) {
  return source.offset % limits::kBlockSize == 0 && source.offset <= kOffsetMax &&
         header.length <= kOffsetMax - source.offset &&
         stripe_of(source.stripe_index) < limits::kStripeWidthMax &&
         (source.flags & ~kCopyMustExist) == 0;
}

}  // namespace braidfs::server
