// What a WRITE takes of a file's set-id bits: its kernel says only whether the writer may keep them
// (HANDLE_KILLPRIV_V2).
#pragma once
#include <cstdint>

#include "client/inode.h"
#include "fuse/request.h"

namespace braidfs::client {

// kCommitKill* of a WRITE to a file that has these bits. The set-group-id bit of a group that may
// not execute stays if the writer is in that group, which only /proc of the writer knows.
uint32_t kill_flags(const fuse::WriteRequest& request, const Inode::SetIds& with);

}  // namespace braidfs::client
