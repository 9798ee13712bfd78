// Announced files (announced.h) and pieces of sequential prefetch (streams.h): what is to be
// fetched is opened, fetched and closed again, without a word to Python. Threads: on the lane that
// is given.
#pragma once
#include <memory>

#include "client/announced.h"
#include "client/early_fetch.h"

namespace braidfs::client {

// Begins with what is announced next, if there is room.
void fetch_announced(Lane& lane);
// Whether what is to be fetched is of an announced file: then it is in the Fetch's buffer, or
// `reader` proceeds when the file has come. fetch_announced() is to follow what was found.
Announced::Found find_announced(Lane& lane, Fetch& fetch, const std::shared_ptr<Operation>& reader);
// A piece of sequential prefetch has come, or could not be fetched.
void piece_came(Lane& lane, EarlyFetch::Result piece);

}  // namespace braidfs::client
