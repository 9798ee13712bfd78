// WRITE: copies the bytes into pieces. It is answered at once (write-behind), or when the targets
// have acknowledged the bytes: for O_SYNC and O_DSYNC, if the budget of dirty bytes has no room,
// and if a target had no room a moment ago. An O_DIRECT write bypasses the page cache, but not
// write-behind: its bytes are sent at once and coalesce with nothing (docs/decisions/0009).
//
// A file is written under an exclusive lease; if there is none, Python is asked for it. While the
// lease is recalled and not yet returned, the file is *shared*: a WRITE still goes on, but it is
// answered when the targets have its bytes, and if it makes the file longer, when the metaserver
// knows the size. An append goes to the true end of the file, whatever offset the kernel sent (rule
// 13).
//
// Small writes that lie side by side coalesce in a piece that is still filling, in whichever order
// they come (docs/decisions/0042). A large write gets pieces of its own, which are copied before
// the inode is locked. A full piece is sent at once. Invariant: a WRITE is answered once; an error
// of its pieces is its answer if it waits for them, and else stays with the inode. Threads:
// write_request() on the lane that took the request; AskingWrite one at a time, the lane that let
// it proceed; WriteOperation ANY LANE. Not here: which piece is sent when (piece_table.h), writes
// of tiny files (inline_write.cpp).
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

// The WRITE goes to the end of the file, whatever offset the kernel sent.
inline bool appends(const fuse::WriteRequest& request) noexcept {
  return (request.open_flags & O_APPEND) != 0 && (request.write_flags & fuse::kWriteFromCache) == 0;
}

// A WRITE that waits for an exclusive lease, for more room by the quotas, or until a file that lies
// in its inode's record has objects. It has its own copy of the bytes. If the file may go on lying
// in the record, the lease request carries the bytes (inline_write.cpp;
// docs/decisions/0037-inline-data.md), and the answer to the request is the answer to the WRITE.
class AskingWrite final : public Operation {
 public:
  static constexpr uint32_t kLeaseRequestsMax = 6000;  // Python waits between them
  // After so many WRITEs to its record a file gets objects, which take any number of them.
  static constexpr uint32_t kInlineWritesMax = 32;

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
  std::shared_ptr<Inode::InlineAnswer> answer_;  // to the lease request that has the bytes
  uint32_t kill_ = 0;                            // kCommitKill* that go with the bytes
  bool grew_ = false;                            // the bytes made the file longer
  bool needs_objects_ = false;                   // the record may not take the bytes
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
    bool shared = false;  // the lease is recalled: a larger size is committed before the answer
  };

  WriteOperation(const fuse::RequestHead& head, Plan plan);
  void piece_added() noexcept { ++pending_; }
  void piece_done(Lane& lane, int error) override;
  void proceed(Lane&) override {}           // it waits for pieces only
  void call_done(Lane&, Call&) override {}  // its pieces own the calls

 private:
  void finish(Lane& lane);
  void tell(Lane& lane, bool grew);

  const Plan plan_;
  std::atomic<uint32_t> pending_ = 1;  // pieces, and one for whoever adds them
  std::atomic<int> error_ = 0;
};

}  // namespace braidfs::client
