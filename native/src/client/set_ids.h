// Which set-id bits a WRITE clears. The kernel says in the request only that the writer may not
// keep them (HANDLE_KILLPRIV_V2).
#pragma once
#include <cstdint>

#include "client/inode.h"
#include "fuse/request.h"

namespace braidfs::client {

// The kCommitKill* flags of a WRITE to a file that has these bits. The set-group-id bit of a file
// whose group may not execute it stays if the writer is in that group, which only the writer's
// entry in /proc tells.
uint32_t kill_flags(const fuse::WriteRequest& request, const Inode::SetIds& with);

}  // namespace braidfs::client
