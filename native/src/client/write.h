// WRITE: copies the bytes into pieces, and answers at once (write-behind) or when the targets have
// acknowledged them (O_SYNC, O_DSYNC, no room in the budget of dirty bytes, or a target that had no
// room a moment ago). O_DIRECT goes round the page cache, not round write-behind: its bytes leave
// at once and merge with nothing (docs/decisions/0009).
//
// A file is written under an exclusive lease, which Python is asked for where it is missing. While
// that is recalled and not yet returned the file is *shared*: writes still pass, but go through,
// and one that makes the file longer is answered when the metaserver knows the size. An append goes
// to the true end, whatever offset the kernel thought of (rule 13).
//
// Small writes that lie side by side merge in a piece that is still filling, in whichever order
// they come (docs/decisions/0042); large ones get pieces of their own, copied before the inode is
// locked. A piece that is full leaves at once. Errors of pieces whose write was answered stay with
// the inode; those of a waiting write are its answer.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/inode.h"
#include "client/lane.h"
#include "client/stale.h"
#include "client/tables.h"

namespace braidfs::client {

void write_request(Lane& lane, const HandlePtr& handle, const fuse::WriteRequest& request);

// It goes where the file ends, whatever the kernel thought of.
inline bool appends(const fuse::WriteRequest& request) noexcept {
  return (request.open_flags & O_APPEND) != 0 && (request.write_flags & fuse::kWriteFromCache) == 0;
}

// A WRITE that waits for an exclusive lease, for more room by the quotas, or for objects of a file
// that lies in its inode's record. Has its own copy of the bytes. Of a file that may go on lying
// there the question has the bytes with it (inline_write.cpp; docs/decisions/0037-inline-data.md),
// and its answer is that of the WRITE.
class AskingWrite final : public Operation {
 public:
  static constexpr uint32_t kLeaseRequestsMax = 6000;  // Python waits between them
  static constexpr uint32_t kInlineWritesMax =
      32;  // of one file: then it gets objects, which take any number

  AskingWrite(HandlePtr handle, const fuse::WriteRequest& request);
  void ask(Lane& lane);
  void proceed(Lane& lane) override;
  void call_done(Lane&, Call&) override {}

 private:
  Inode::Waiter waiter() {
    return {shared_from_this(), request_.offset, request_.offset + payload_.size()};
  }
  bool ask_with_bytes(Context& context);
  void inline_answered(Lane& lane);
  void inline_written(Lane& lane);

  HandlePtr handle_;
  std::vector<std::byte> payload_;
  fuse::WriteRequest request_;
  uint32_t lease_requests_ = 0;
  uint64_t lease_request_ = 0;
  std::shared_ptr<Inode::InlineAnswer> answer_;  // of the question that has the bytes
  uint32_t kill_ = 0;                            // kCommitKill* that go with them
  bool grew_ = false;                            // the file, by them
  bool needs_objects_ = false;                   // that was refused
};

// A WRITE that waits for its pieces.
class WriteOperation final : public Operation, public PieceWaiter {
 public:
  struct Plan {
    HandlePtr handle;
    WriteReach reach{};
    uint32_t count = 0;
    uint32_t kill = 0;    // kCommitKill*
    bool sync = false;    // O_SYNC, O_DSYNC: durable before it is answered
    bool shared = false;  // the lease is recalled: a growth is committed before the answer
  };

  WriteOperation(const fuse::RequestHead& head, Plan plan);
  void piece_added() noexcept { ++pending_; }
  void piece_done(Lane& lane, int error) override;
  void proceed(Lane&) override {}           // waits for pieces only
  void call_done(Lane&, Call&) override {}  // owns no calls: its pieces do

 private:
  void finish(Lane& lane);
  void tell(Lane& lane, bool grew);

  const Plan plan_;
  std::atomic<uint32_t> pending_ = 1;  // the one who adds pieces holds one
  std::atomic<int> error_ = 0;
};

}  // namespace braidfs::client
