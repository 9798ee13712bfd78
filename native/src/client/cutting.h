// Lanes cut a file that only this client may write, and the metaserver is told later (cuts.h;
// docs/decisions/0058-cuts-told-later.md). Threads: cut_file() on the lane, the rest ANY THREAD.
#pragma once
#include <cstdint>

#include "client/context.h"
#include "client/lane.h"

namespace braidfs::client {

// The file, which is open by this handle, gets another size. False: only Python may see to that.
bool cut_file(Lane& lane, const HandlePtr& handle, const fuse::CutRequest& request);

// The answer to a CUT event: its number, and what the file is since, or an error.
struct CutAnswer {
  uint64_t number = 0;
  Status status = Status::kOk;
  Bytes attributes{};
  Bytes layout{};
  Bytes capability{};
};
// False: that is no news.
bool cut_done(Context& context, uint64_t ino, const CutAnswer& answer);

}  // namespace braidfs::client
