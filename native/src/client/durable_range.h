// Changes of a file's objects that are made durable before they are done: what is asked of the
// targets, then a SYNC of each object that was changed. A target that lost unsynced bytes in
// between sends all of it to another round. One thread at a time: the lane that issued the calls.
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

  // Ask for a round's changes; or say why there is none (errno).
  virtual int change(Lane& lane) = 0;
  // Of another status than OK: whether it ends with this round.
  virtual bool goes_again(Status status) const = 0;
  // What DONE tells besides the error.
  virtual int64_t result() const { return 0; }

  // A call for an object of the file, in this round's view; it leaves by submit().
  Call* make_call(Lane& lane, Op op, uint32_t stripe_index, uint64_t offset, uint32_t length);
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
  std::vector<uint64_t> incarnations_;  // by stripe: the oldest that has a change of this round
  uint64_t stripes_ = 0;
  bool syncing_ = false;
  bool again_ = false;
  uint32_t pending_ = 0;
  uint32_t rounds_ = 0;
  int error_ = 0;
};

}  // namespace braidfs::client
