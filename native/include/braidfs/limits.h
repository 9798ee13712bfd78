// Bounds of the data path; fscommon/limits.py is the table, tests/wire compares the two.
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
inline constexpr uint32_t kReplicaCountMax = 3;
inline constexpr uint64_t kObjectBytesMax = uint64_t{8'355'967}
                                            << 20;     // as record pages lie in its file
inline constexpr uint32_t kInlineLengthMax = 4096;     // of a file that lies in its inode's record
inline constexpr uint32_t kDeleteAllMax = 256;         // objects of one DELETE_ALL
inline constexpr uint32_t kFetchMax = 256;             // objects of one FETCH
inline constexpr uint32_t kFetchLengthMax = 1u << 20;  // of each
inline constexpr uint32_t kCopyLengthMin = 128u
                                           << 10;  // less is the kernel's to copy: it is as fast

}  // namespace braidfs::limits
