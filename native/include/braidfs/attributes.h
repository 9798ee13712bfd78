// Where the fields of a packed attribute record lie (docs/INTERFACES.md section 1).
// fscommon/layout/attributes.py has the same; a test in tests/wire compares the two. Constants: ANY
// THREAD.
#pragma once
#include <cstddef>
#include <cstdint>

namespace braidfs::record {

inline constexpr size_t kBytes = 128;

inline constexpr size_t kIno = 0;
inline constexpr size_t kSize = 8;
inline constexpr size_t kBlocks = 16;
inline constexpr size_t kAtime = 24;  // times are as in file_time.h
inline constexpr size_t kMtime = 32;
inline constexpr size_t kCtime = 40;
inline constexpr size_t kBtime = 48;
inline constexpr size_t kMode = 56;
inline constexpr size_t kNlink = 60;
inline constexpr size_t kUid = 64;
inline constexpr size_t kGid = 68;
inline constexpr size_t kRdev = 72;
inline constexpr size_t kFlags = 76;
inline constexpr size_t kDataVersion = 80;
inline constexpr size_t kChangeVersion = 88;
inline constexpr size_t kParent = 96;
inline constexpr size_t kLeaseFlags = 112;
inline constexpr size_t kXattrCount = 116;

// Of the inode flags (chattr(1)).
inline constexpr uint32_t kInodeImmutable = 0x10;

}  // namespace braidfs::record
