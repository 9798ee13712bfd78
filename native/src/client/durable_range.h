// A change of a file's objects that is durable before it is answered: the requests to the targets,
// and then a SYNC of each object that was changed. If a target has lost unsynced bytes in between,
// all of it begins another round. Threads: one at a time, the lane that issued the calls.
#pragma once
#include <cstdint>
#include <vector>

#include "client/inode.h"
#include "client/lane.h"

namespace braidfs::client {

class DurableRangeOperation : public Operation {
 public:
  void proceed(Lane& lane) final;
  void call_done(Lane& lane, Call& call) final;

 protected:
  DurableRangeOperation(uint64_t token, InodePtr inode) : token_(token), inode_(std::move(inode)) {}

  // Makes the calls of one round. Returns an errno if it can make none, else 0.
  virtual int change(Lane& lane) = 0;
  // Whether another round may follow after a status other than OK.
  virtual bool goes_again(Status status) const = 0;
  // What the DONE event has besides the error.
  virtual int64_t result() const { return 0; }

  // A call for the object in this row of this round's view; it leaves by submit().
  Call* make_call(Lane& lane, Op op, uint32_t row, uint64_t offset, uint32_t length);
  void submit(Lane& lane, Call* call);
  void finish(Lane& lane, int64_t result);

  const FileView& view() const { return *view_; }
  uint64_t stripes_changed() const { return stripes_; }  // a bit each, in all rounds

 private:
  static constexpr uint32_t kRoundsMax = 16;
  void sync(Lane& lane);
  void advance(Lane& lane);

  const uint64_t token_;
  const InodePtr inode_;
  FileViewPtr view_;
  std::vector<uint64_t> incarnations_;  // by row: the oldest that has a change of this round
  uint64_t stripes_ = 0;
  bool syncing_ = false;
  bool again_ = false;
  uint32_t pending_ = 0;
  uint32_t rounds_ = 0;
  int error_ = 0;
};

}  // namespace braidfs::client
