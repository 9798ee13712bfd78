// Telling servers which files are going to be read (fetch_ahead.h): the FETCH requests, from the
// first lane. Threads: ANY THREAD.
#pragma once
#include "client/context.h"

namespace braidfs::client {

// This file is going to be read, like others of its directory; send_fetches() behind the last of
// them.
void want_fetched(Prefetched& prefetched, const Attributes& attributes, const FileView& view);
void send_fetches(Context& context);

}  // namespace braidfs::client
