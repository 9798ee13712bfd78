// COPY copies a range of one file to another file inside each storage server, from target to
// target, and makes it durable before it is answered. None of the bytes pass through the client.
//
// Python drains both inodes first and holds the lease on the sink. Offsets and length are whole
// blocks. The range is cut at the chunk borders of both files. Invariant: an operation copies a
// range only if each source chunk and its sink chunk lie on targets of one server; reach() says how
// far that is so. Threads: one at a time, the lane that issued the calls. Not here: SYNC and
// repetition (durable_range.h).
#pragma once
#include <bit>
#include <cstdint>

#include "client/durable_range.h"

namespace braidfs::client {

struct CopyRange {
  InodePtr source;
  InodePtr sink;
  uint64_t source_begin = 0;
  uint64_t sink_begin = 0;
  uint64_t length = 0;
};

// It ends with DONE(token, status, a bit for each stripe of the sink that was written). With
// only_reach nothing is copied, and DONE tells how many bytes can be copied.
class CopyOperation final : public DurableRangeOperation {
 public:
  static void start(Lane& lane, uint64_t token, CopyRange range, bool only_reach);
  CopyOperation(uint64_t token, CopyRange range);

 protected:
  int change(Lane& lane) override;
  bool goes_again(Status status) const override { return status == Status::kStaleIncarnation; }
  int64_t result() const override { return std::bit_cast<int64_t>(stripes_changed()); }

 private:
  uint64_t reach(Lane& lane, const FileView& source, const FileView& sink) const;

  const CopyRange range_;
};

}  // namespace braidfs::client
