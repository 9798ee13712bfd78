// Fuzzes the records of a file that metaservers send: a record that is accepted is complete, and
// has its bytes and its replicas where the contract says (docs/INTERFACES.md, section 1). Half of
// the inputs are raw. The other half gets a capability of the same file and a plausible head, so
// that what lies behind them is reached.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "client/records.h"

namespace {

using braidfs::Capability;
using braidfs::client::FileView;
using braidfs::client::Replica;
using Bytes = std::vector<std::byte>;

constexpr size_t kHead = 32;
constexpr size_t kReplicatedHead = 40;

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename T>
T load(std::span<const std::byte> record, size_t at) {
  T value;
  require(at + sizeof value <= record.size());
  std::memcpy(&value, record.data() + at, sizeof value);
  return value;
}

template <typename T>
void store(Bytes& record, size_t at, T value) {
  std::memcpy(record.data() + at, &value, sizeof value);
}

// Makes the head of the record plausible; what it says is still up to the input.
void make_plausible(Bytes& input) {
  const size_t at = sizeof(Capability);
  if (input.size() < at + kReplicatedHead) return;
  const std::span record = std::span(input).subspan(at);
  store<uint8_t>(input, at, 1 + (load<uint8_t>(record, 0) & 1));
  store<uint8_t>(input, at + 1, 1 + load<uint8_t>(record, 1) % 5);
  store<uint16_t>(input, at + 2, 1 + load<uint16_t>(record, 2) % 8);
  store<uint32_t>(input, at + 4, 65536 * (1 + load<uint32_t>(record, 4) % 16));
  store<uint64_t>(input, 0, load<uint64_t>(record, 8));
  if ((load<uint8_t>(record, 21) & 1) == 0) return;
  store<uint32_t>(input, at + 32, load<uint32_t>(record, 32) % 8);
  store<uint32_t>(input, at + 36, 1 + load<uint32_t>(record, 36) % 3);
}

// The replicas of a stripe as the record has them, without vacant places.
std::vector<Replica> replicas_in(std::span<const std::byte> record, const FileView& view,
                                 uint32_t stripe) {
  if (!view.is_replicated) return {{load<uint32_t>(record, kHead + size_t{4} * stripe), stripe}};
  std::vector<Replica> found;
  const auto generation_last = load<uint32_t>(record, kHead);
  for (uint32_t place = 0; place < view.places; ++place) {
    const size_t at = kReplicatedHead + 8 * (size_t{stripe} * view.places + place);
    const auto target = load<uint32_t>(record, at);
    const auto generation = load<uint32_t>(record, at + 4);
    require(generation <= generation_last);
    if (target == FileView::kVacant) continue;
    for (const Replica& other : found) require(other.target != target);
    found.push_back({target, braidfs::object_number(stripe, generation)});
  }
  return found;
}

void check(std::span<const std::byte> record, const FileView& view) {
  const size_t rows = view.rows.size();
  const size_t size = view.is_replicated ? kReplicatedHead + 8 * rows : kHead + 4 * rows;
  require(record.size() == size + view.inline_bytes.size());
  require(view.inline_bytes.size() <= braidfs::limits::kInlineLengthMax);
  require(rows == size_t{view.stripe_width} * view.places);
  for (uint32_t stripe = 0; stripe < view.stripe_width; ++stripe) {
    const std::vector<Replica> wanted = replicas_in(record, view, stripe);
    require(!wanted.empty());
    require(std::ranges::equal(view.replicas(stripe), wanted));
    require(view.first_replica(stripe) == wanted.front());
    require(view.is_mirrored(stripe) == (wanted.size() > 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto all = std::as_bytes(std::span(data, size));
  if (all.size() < 1 + sizeof(Capability)) return 0;
  Bytes input(all.begin() + 1, all.end());
  if ((data[0] & 1) != 0) make_plausible(input);
  const std::span<const std::byte> bytes(input);
  const auto record = bytes.subspan(sizeof(Capability));
  const auto view = braidfs::client::decode_view(record, bytes.first(sizeof(Capability)));
  if (view) check(record, *view);
  return 0;
}
