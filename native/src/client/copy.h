// COPY: a range of one file to another one, target to target inside each storage server, made
// durable before it is done. No byte comes here.
//
// Python drains both inodes first and holds the sink's lease; offsets and length are whole blocks.
// The range is cut at the chunks of both files; what is copied is what lies, from the beginning on,
// on targets of one server each time. One thread at a time: the lane that issued the calls.
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

// → DONE(token, status, the sink's stripes that were written, a bit each). only_reach: nothing is
// copied, DONE tells how many bytes would be.
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
