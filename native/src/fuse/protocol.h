// The kernel's FUSE structures (linux/fuse.h) and the newer constants that old headers lack.
#pragma once
#include <linux/fuse.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace braidfs::fuse {

static_assert(sizeof(fuse_in_header) == 40 && sizeof(fuse_out_header) == 16);
static_assert(sizeof(fuse_write_in) == 40 && sizeof(fuse_read_in) == 40);

// Bits of the 64-bit INIT flags (flags | flags2 << 32).
inline constexpr uint64_t kDirectIoAllowMmap = 1ULL << 36;
inline constexpr uint64_t kHasPassthrough = 1ULL << 37;  // Linux 6.9
inline constexpr uint64_t kHasResend = 1ULL << 39;
inline constexpr uint64_t kHasExpireOnly = 1ULL << 35;
inline constexpr uint64_t kAllowIdmap = 1ULL << 40;  // Linux 6.12

// Kinds and flags of notifications.
inline constexpr int kNotifyResend = 7;  // Linux 6.9: unanswered requests are read again
inline constexpr uint32_t kEntryExpireOnly =
    1;  // Linux 6.2: a dentry in use stays and is looked up again

// open_flags of fuse_open_out.
inline constexpr uint32_t kFopenDirectIo = 1u << 0;
inline constexpr uint32_t kFopenNoflush = 1u << 5;
inline constexpr uint32_t kFopenParallelDirectWrites = 1u << 6;
inline constexpr uint32_t kFopenPassthrough = 1u << 7;  // Linux 6.9; backing_id is in `padding`

inline constexpr uint32_t kFattrKillSuidgid = 1u << 11;  // fuse_setattr_in.valid
inline constexpr uint32_t kOpenKillSuidgid = 1u << 0;  // open_flags of fuse_open_in, fuse_create_in

// The ioctls on /dev/fuse for files that the kernel reads by itself (Linux 6.9).
struct BackingMap {
  int32_t fd = -1;
  uint32_t flags = 0;
  uint64_t padding = 0;
};
inline constexpr uint32_t kBackingOpen =
    0x4010e501;  // FUSE_DEV_IOC_BACKING_OPEN takes BackingMap, returns the id
inline constexpr uint32_t kBackingClose = 0x4004e502;  // FUSE_DEV_IOC_BACKING_CLOSE takes the id

inline constexpr uint32_t kOpStatx = 52;
inline constexpr size_t kStatxInSize = 24;  // fuse_statx_in
inline constexpr size_t kStatxSizeAt = 72;  // offset of fuse_statx_out.stat.size

// The ioctls that BraidFS supports (linux/fs.h); all others get ENOTTY.
inline constexpr uint32_t kIoctlGetFlags = 0x80086601;  // FS_IOC_GETFLAGS
inline constexpr uint32_t kIoctlSetFlags = 0x40086602;  // FS_IOC_SETFLAGS
inline constexpr uint32_t kIoctlGetXattr = 0x801c581f;  // FS_IOC_FSGETXATTR
inline constexpr uint32_t kIoctlSetXattr = 0x401c5820;  // FS_IOC_FSSETXATTR

// BraidFS's own ioctl (docs/decisions/0038-announced-reads.md): _IOW(0xb4, 1, 16376 bytes).
inline constexpr uint32_t kIoctlAnnounce = 0x7ff8b401;
inline constexpr size_t kAnnounceSize = 16376;

// The size of a WRITE's header and fixed part, before its payload.
inline constexpr size_t kWriteHeadSize = sizeof(fuse_in_header) + sizeof(fuse_write_in);

// The structure at the start of `bytes`, or nothing when there are too few of them.
template <typename T>
requires std::is_trivially_copyable_v<T> std::optional<T> load(std::span<const std::byte> bytes)
noexcept {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// The header of an answer with a body of this size. error: a positive errno, or 0.
inline fuse_out_header answer_header(uint64_t unique, int error, size_t body_size) noexcept {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + body_size);
  header.error = -error;
  header.unique = unique;
  return header;
}

// Sets how long the kernel may cache the name.
inline void set_valid(fuse_entry_out& entry, std::chrono::nanoseconds valid) noexcept {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  entry.entry_valid = static_cast<uint64_t>(valid.count() / kNanoseconds);
  entry.entry_valid_nsec = static_cast<uint32_t>(valid.count() % kNanoseconds);
}

}  // namespace braidfs::fuse
