// The packed attribute record of docs/INTERFACES.md section 1, as far as this folder reads and
// writes it. Little-endian, as every machine that this runs on.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace braidfs::names::record {

inline constexpr size_t kBytes = 128;
using Record = std::array<std::byte, kBytes>;

inline constexpr size_t kIno = 0, kSize = 8, kBlocks = 16;
inline constexpr size_t kAtime = 24, kMtime = 32, kCtime = 40, kBtime = 48;  // file_time.h
inline constexpr size_t kMode = 56, kNlink = 60, kUid = 64, kGid = 68, kRdev = 72, kFlags = 76;
inline constexpr size_t kDataVersion = 80, kChangeVersion = 88, kParent = 96, kLeaseFlags = 112;
inline constexpr size_t kXattrCount = 116;
inline constexpr uint32_t kPermissions = 07777;  // of the mode
inline constexpr uint32_t kImmutable = 0x10;     // of the inode flags (chattr(1))
inline constexpr uint32_t kOpenElsewhere = 64;   // beside the leases: another client has it open

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
  return (field<uint32_t>(record, kFlags) & kImmutable) != 0;
}

}  // namespace braidfs::names::record
