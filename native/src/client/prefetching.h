// Carries out what the Prefetcher wants (prefetch/prefetcher.h): begins the fetches and gives it
// what came of them. What is fetched is opened and closed without a word to Python.
//
// Invariant: what the Prefetcher has under way is ended once, with bytes or without. Threads: on
// the lane that is given. Not here: what storage servers are told (server_fetch.h).
#pragma once
#include "client/early_fetch.h"
#include "client/prefetch/extents.h"

namespace braidfs::client {

// Extents of that file, which are under way in the Prefetcher.
void fetch_extents(Lane& lane, const InodePtr& inode, const prefetch::Extents& extents);
// The files that are announced next, as far as there is room.
void fetch_announced(Lane& lane);

}  // namespace braidfs::client
