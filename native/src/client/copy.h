// COPY: a range of one file to another one, target to target inside each storage server, made durable
// before it is done. No byte comes here.
//
// Python drains both inodes first and holds the sink's lease; offsets and length are whole blocks.
// The range is cut at the chunks of both files; what is copied is what lies, from the beginning on,
// on targets of one server each time. One thread at a time: the lane that issued the calls.
#pragma once
#include <cstdint>
#include <vector>

#include "client/inode.h"
#include "client/lane.h"

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
class CopyOperation final : public Operation {
 public:
  static void start(Lane& lane, uint64_t token, CopyRange range, bool only_reach);
  CopyOperation(uint64_t token, CopyRange range, bool only_reach);
  void proceed(Lane& lane) override;
  void call_done(Lane& lane, Call& call) override;

 private:
  static constexpr uint32_t kRoundsMax = 16;
  uint64_t reach(Lane& lane) const;
  void copy(Lane& lane);
  void sync(Lane& lane);
  void ask(Lane& lane, Call* call);
  void advance(Lane& lane);
  void finish(Lane& lane, int64_t result);

  const uint64_t token_;
  const CopyRange range_;
  const bool only_reach_;
  FileViewPtr source_;
  FileViewPtr sink_;
  std::vector<uint64_t> incarnations_;  // by stripe of the sink: the oldest of this round
  uint64_t stripes_ = 0;
  bool syncing_ = false;
  bool again_ = false;
  uint32_t pending_ = 0;
  uint32_t rounds_ = 0;
  int error_ = 0;
};

}  // namespace braidfs::client
