// The packed attribute record of docs/INTERFACES.md section 1: the fields that this folder reads
// and writes. They are little-endian, as are all machines on which this runs. Pure.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "braidfs/attributes.h"

namespace braidfs::record {

using Record = std::array<std::byte, kBytes>;

inline constexpr uint32_t kPermissions = 07777;  // of the mode

template <typename T>
T field(std::span<const std::byte> record, size_t offset) noexcept {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void set_field(std::span<std::byte> record, size_t offset, T value) noexcept {
  std::memcpy(record.data() + offset, &value, sizeof(T));
}

inline void set_size(std::span<std::byte> record, uint64_t size) noexcept {
  set_field(record, kSize, size);
  set_field(record, kBlocks, (size + 511) / 512);
}

inline bool is_immutable(std::span<const std::byte> record) noexcept {
  return (field<uint32_t>(record, kFlags) & kInodeImmutable) != 0;
}

}  // namespace braidfs::record
