// Bounds of the data path. fscommon/limits.py is the table of all limits; a test in tests/wire
// compares the two. Constants: ANY THREAD.
#pragma once
#include <cstdint>

namespace braidfs::limits {

inline constexpr uint32_t kBlockSize = 4096;
inline constexpr uint32_t kFrameBodyLengthMax = 4u << 20;
inline constexpr uint32_t kFramePayloadLengthMax = 16u << 20;
inline constexpr uint32_t kRequestsInFlightMax = 1024;
inline constexpr uint32_t kChunkSizeMin = 64u << 10;
inline constexpr uint32_t kChunkSizeMax = 64u << 20;
inline constexpr uint32_t kStripeWidthMax = 64;
inline constexpr uint32_t kReplicaCountMax = 3;   // that an administrator may ask for
inline constexpr uint32_t kReplicaPlacesMax = 4;  // of a stripe: one more, for a replica that moves
// An object's number: its stripe index, and above it its generation.
inline constexpr uint32_t kGenerationShift = 8;
inline constexpr uint32_t kGenerationMax = 0xffffff;
// The most that one object can hold, given how pages of block records are placed in its file.
inline constexpr uint64_t kObjectBytesMax = uint64_t{8'355'967} << 20;
inline constexpr uint32_t kInlineLengthMax = 4096;  // bytes of a file stored in its inode's record
inline constexpr uint32_t kDeleteAllMax = 256;      // objects in one DELETE_ALL
inline constexpr uint32_t kDropNamesMax = 512;      // names in one DROP_NAMES
inline constexpr uint32_t kFetchMax = 256;          // objects in one FETCH
inline constexpr uint32_t kFetchLengthMax = 1u << 20;  // bytes of each object in a FETCH
// Shorter copies are left to the kernel, which is as fast.
inline constexpr uint32_t kCopyLengthMin = 128u << 10;

}  // namespace braidfs::limits
