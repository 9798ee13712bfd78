// Tells storage servers which files are going to be read (prefetch/server_caches.h): the first lane
// sends FETCH requests. Threads: ANY THREAD. Not here: which files are wanted when
// (prefetch/server_caches.h).
#pragma once
#include "client/context.h"

namespace braidfs::client {

// This file is going to be read, like others of its directory. The caller calls tell_servers()
// after the last of them.
void want_in_server_caches(Context& context, const Attributes& attributes, const FileView& view);
// Sends FETCH requests for the wanted files, if programs are known to read files whole.
void tell_servers(Context& context);

}  // namespace braidfs::client
