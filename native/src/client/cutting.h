// Lanes cut a file that only this client may write; the metaserver learns of it later (cuts.h,
// docs/decisions/0058-cuts-told-later.md). Threads: cut_file() on the lane, the rest ANY THREAD.
#pragma once
#include <cstdint>

#include "client/context.h"
#include "client/lane.h"

namespace braidfs::client {

// Gives the file, which is open by this handle, another size. False: Python has to do it.
bool cut_file(Lane& lane, const HandlePtr& handle, const fuse::CutRequest& request);

// The answer to a CUT event: its number, and the file's records since then, or an error.
struct CutAnswer {
  uint64_t number = 0;
  Status status = Status::kOk;
  Bytes attributes{};
  Bytes layout{};
  Bytes capability{};
};
// False: it answers no report that is under way.
bool cut_done(Context& context, uint64_t ino, const CutAnswer& answer);

}  // namespace braidfs::client
