// Announced files (announced.h) and pieces of streams (streams.h): what is to be fetched is opened,
// fetched and closed again, without a word to Python. Threads: on the lane that is given.
#pragma once
#include <cstdint>

#include "client/context.h"
#include "client/lane.h"

namespace braidfs::client {

// Begins with what is announced next, if there is room.
void fetch_announced(Lane& lane);
// What was fetched, or could not be: `handle` is done with.
void announced_came(Lane& lane, const HandlePtr& handle, uint64_t stamp, uint32_t size,
                    Buffer bytes);
// A piece of a stream, or (empty) none.
void piece_came(Lane& lane, const CachedExtent& extent, Buffer bytes);

}  // namespace braidfs::client
