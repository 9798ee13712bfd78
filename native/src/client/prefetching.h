// Fetches what the Prefetcher wants (prefetch/prefetcher.h) and gives it the bytes. Announced files
// are opened and closed for that without an upcall.
//
// Invariant: each extent that is under way in the Prefetcher is ended once, with bytes or without.
// Threads: on the lane that is given. Not here: what storage servers are told (server_fetch.h).
#pragma once
#include "client/early_fetch.h"
#include "client/prefetch/extents.h"

namespace braidfs::client {

// Fetches extents of that file, which are under way in the Prefetcher.
void fetch_extents(Lane& lane, const InodePtr& inode, const prefetch::Extents& extents);
// Fetches the files that are announced next, as far as there is room.
void fetch_announced(Lane& lane);

}  // namespace braidfs::client
