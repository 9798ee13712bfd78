// The records of files at the metaserver of a world: sizes, and layouts with replicas that have
// generations (docs/INTERFACES.md, section 1; docs/decisions/0063-mirrors.md).
#pragma once
#include <compare>
#include <cstdint>
#include <vector>

#include "braidfs/frame.h"
#include "frames.h"
#include "store/object_table.h"

namespace braidfs::world {

using KeyBytes = std::array<std::byte, 32>;

// Of a replica, for ever: its object at a target.
struct Name {
  uint32_t target = 0;
  uint64_t file_id = 0;
  uint32_t number = 0;  // stripe index and generation
  auto operator<=>(const Name&) const = default;

  store::ObjectId object() const noexcept { return {file_id, number}; }
  uint32_t stripe() const noexcept { return stripe_of(number); }
};

struct Place {
  uint32_t target = 0;  // 0: vacant
  uint32_t generation = 0;
  bool operator==(const Place&) const = default;
};

struct FileRecord {
  uint64_t ino = 0;
  uint64_t file_id = 0;
  uint64_t size = 0;
  uint64_t version = 1;
  uint32_t epoch = 0;
  uint32_t chunk_size = 0;
  uint32_t width = 1;
  uint32_t wanted = 1;  // replicas of each stripe
  uint32_t generation_last = 0;
  bool is_replicated = false;
  uint64_t durable_stripes = 0;
  std::vector<std::vector<Place>> stripes{};

  // How long the object of a stripe is in a file of that size.
  uint64_t object_length(uint32_t stripe, uint64_t file_size) const noexcept;
  bool was_durable(uint32_t stripe) const noexcept { return (durable_stripes >> stripe & 1) != 0; }
  std::vector<Name> names() const;
  std::vector<Name> names_of(uint32_t stripe) const;
  bool is_whole() const;  // no stripe lacks a replica
  // False: it is not there any more.
  bool remove(const Name& name);
  void add(const Name& name);

  Bytes attributes() const;
  Bytes layout() const;
  Bytes capability(uint64_t session, const KeyBytes& key, bool writable) const;
};

// What an OPEN answers with.
struct Records {
  Bytes attributes;
  Bytes layout;
  Bytes capability;
};

}  // namespace braidfs::world
