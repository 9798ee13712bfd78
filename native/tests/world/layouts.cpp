#include "layouts.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

namespace braidfs::world {

namespace {

constexpr size_t kAttributesBytes = 128;
constexpr size_t kLayoutHeadBytes = 32;
constexpr size_t kReplicatedHeadBytes = 40;

template <typename T>
void put(Bytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

Place place_of(const Name& name) { return {name.target, generation_of(name.number)}; }

}  // namespace

uint64_t FileRecord::object_length(uint32_t stripe, uint64_t file_size) const noexcept {
  uint64_t end = 0;
  for (uint64_t chunk = stripe; chunk * chunk_size < file_size; chunk += width)
    end =
        chunk / width * chunk_size + std::min<uint64_t>(chunk_size, file_size - chunk * chunk_size);
  return end;
}

std::vector<Name> FileRecord::names_of(uint32_t stripe) const {
  std::vector<Name> found;
  for (const Place& place : stripes[stripe]) {
    if (place.target != 0)
      found.push_back({place.target, file_id, object_number(stripe, place.generation)});
  }
  return found;
}

std::vector<Name> FileRecord::names() const {
  std::vector<Name> all;
  for (uint32_t stripe = 0; stripe < stripes.size(); ++stripe) {
    const auto some = names_of(stripe);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

bool FileRecord::is_whole() const {
  for (uint32_t stripe = 0; stripe < width; ++stripe) {
    if (names_of(stripe).size() < wanted) return false;
  }
  return true;
}

bool FileRecord::remove(const Name& name) {
  if (name.file_id != file_id) return false;
  auto& row = stripes[name.stripe()];
  const auto found = std::find(row.begin(), row.end(), place_of(name));
  if (found == row.end()) return false;
  *found = {};
  return true;
}

void FileRecord::add(const Name& name) {
  auto& row = stripes[name.stripe()];
  const auto vacant = std::find(row.begin(), row.end(), Place{});
  if (vacant == row.end()) {
    row.push_back(place_of(name));
  } else {
    *vacant = place_of(name);
  }
}

Bytes FileRecord::attributes() const {
  Bytes record(kAttributesBytes);
  put(record, 0, ino);
  put(record, 8, size);
  put(record, 80, version);
  put(record, 88, version);
  return record;
}

Bytes FileRecord::layout() const {
  size_t places = 1;
  for (const auto& row : stripes) places = std::max(places, row.size());
  const size_t head = is_replicated ? kReplicatedHeadBytes : kLayoutHeadBytes;
  const size_t row_bytes = is_replicated ? 8 : 4;
  Bytes record(head + row_bytes * width * places);
  put<uint8_t>(record, 0, is_replicated ? 2 : 1);
  put(record, 1, static_cast<uint8_t>(places));
  put(record, 2, static_cast<uint16_t>(width));
  put(record, 4, chunk_size);
  put(record, 8, file_id);
  put(record, 16, epoch);
  put(record, 24, durable_stripes);
  if (is_replicated) put(record, 32, generation_last);
  if (is_replicated) put(record, 36, wanted);
  for (uint32_t stripe = 0; stripe < width; ++stripe) {
    for (size_t place = 0; place < stripes[stripe].size(); ++place) {
      const size_t at = head + row_bytes * (stripe * places + place);
      put(record, at, stripes[stripe][place].target);
      if (is_replicated) put(record, at + 4, stripes[stripe][place].generation);
    }
  }
  return record;
}

Bytes FileRecord::capability(uint64_t session, const KeyBytes& key, bool writable) const {
  size_t places = 1;
  for (const auto& row : stripes) places = std::max(places, row.size());
  Capability capability;
  capability.file_id = file_id;
  capability.session = session;
  capability.rights = writable ? kRightRead | kRightWrite : kRightRead;
  capability.ino = ino;
  capability.stripe_width = static_cast<uint16_t>(width);
  capability.replica_places = is_replicated ? static_cast<uint16_t>(places) : 0;
  capability.truncate_epoch = epoch;
  const auto all = static_cast<uint32_t>(width * places);
  for (uint32_t stripe = 0; stripe < width && target_mark_width(all) != 0; ++stripe) {
    for (size_t place = 0; place < stripes[stripe].size(); ++place) {
      const uint64_t mark = target_mark(stripes[stripe][place].target, all);
      capability.target_marks |= mark << ((stripe * places + place) * target_mark_width(all));
    }
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(&capability),
       sizeof(capability) - sizeof(capability.mac), mac.data(), &length);
  std::memcpy(capability.mac, mac.data(), sizeof(capability.mac));
  const auto raw = std::as_bytes(std::span(&capability, 1));
  return {raw.begin(), raw.end()};
}

}  // namespace braidfs::world
