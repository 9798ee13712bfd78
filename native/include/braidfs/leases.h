// Bits of the leases on an inode, as attribute records carry them. fscommon/layout/attributes.py
// has the same; a test in tests/wire compares the two. Constants: ANY THREAD.
#pragma once
#include <cstdint>

namespace braidfs {

// The facets that may be leased. Whoever holds an exclusive bit also holds the shared one.
inline constexpr uint32_t kLeaseMeta = 1;
inline constexpr uint32_t kLeaseEntries = 2;
inline constexpr uint32_t kLeaseData = 4;
inline constexpr uint32_t kLeaseMetaExclusive = 8;
inline constexpr uint32_t kLeaseEntriesExclusive = 16;
inline constexpr uint32_t kLeaseDataExclusive = 32;
// This is no lease, but is reported with them: another client has the inode open.
inline constexpr uint32_t kOpenElsewhere = 64;

}  // namespace braidfs
