// What a writer has done to a file, as COMMIT tells the metaserver. fscommon/wire/messages.py has
// the same; a test in tests/wire compares the two. Constants: ANY THREAD.
#pragma once
#include <cstdint>

namespace braidfs {

inline constexpr uint32_t kCommitSize = 1;
inline constexpr uint32_t kCommitMtime = 2;
inline constexpr uint32_t kCommitKillSuidgid = 4;
inline constexpr uint32_t kCommitSynced = 8;
inline constexpr uint32_t kCommitKillSgid = 16;  // also that of a group which may not execute
// Never on the wire: the size is what the file has now, and not the least that it has. Nothing can
// be committed.
inline constexpr uint32_t kWrittenCut = 1u << 31;

}  // namespace braidfs
