// Tells storage servers which files are going to be read (prefetch/server_caches.h): the FETCH
// requests, which the first lane sends. Threads: ANY THREAD.
#pragma once
#include "client/context.h"

namespace braidfs::client {

// This file is going to be read, like others of its directory; tell_servers() follows the last of
// them.
void want_in_server_caches(Context& context, const Attributes& attributes, const FileView& view);
// Sends what is wanted, if programs are known to read files whole.
void tell_servers(Context& context);

}  // namespace braidfs::client
