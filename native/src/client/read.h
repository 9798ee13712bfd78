// READ: waits for overlapping written pieces, asks the targets, answers from the receive buffer.
//
// The request is cut into spans by the layout; each goes as one READ frame on this lane's own
// connections and is received into its place of one buffer. What a target does not have is zeros: a
// short reply, a hole, an object that never was. All on the lane that took the request, except
// after a wait for pieces, when the lane that settled the last one goes on. Without a lease on the
// file's bytes Python is asked for one first (rule 12); one that was not granted does not keep
// bytes from being read: they are those of after the question. They do not stay in the kernel then,
// and a READ that ends at the file's end asks again when another end was told meanwhile. A file
// that lies in its inode's record is answered from the view, and no target is asked.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/inode.h"
#include "client/lane.h"
#include "client/streams.h"
#include "client/tables.h"

namespace braidfs::client {

class ReadOperation final : public Operation {
 public:
  static void start(Lane& lane, const Handle& handle, const fuse::ReadRequest& request);
  // The whole of an announced file (announced.h), for nobody yet; `handle` is OpenFiles'.
  static void fetch(Lane& lane, const HandlePtr& handle);
  // The whole of a file whose OPEN is answered then (core.h, fetch_opened).
  static void fetch_opened(Lane& lane, const HandlePtr& handle, const fuse::RequestHead& head,
                           uint32_t size);
  // A piece of a stream (streams.h), for nobody yet.
  static void fetch_piece(Lane& lane, const InodePtr& inode, Streams::Piece piece);
  void proceed(Lane& lane) override;
  void call_done(Lane& lane, Call& call) override;
  bool answered_early(Context& context) override;
  bool is_read() const noexcept override { return true; }

 private:
  static constexpr uint32_t kRestartsMax = 8;
  static constexpr uint32_t kEndsMax = 100;  // that were told while it asked for the true one

  void arm(const fuse::RequestHead& head, const InodePtr& inode, uint64_t offset, uint32_t size);
  bool ask_first(Lane& lane);
  void registered(Lane& lane);
  bool wait_for_pieces(Lane& lane);
  // LOCKED inode. Whether its bytes are void at the targets until a cut was told (cuts.h), which
  // this waits for; `event` is to be put then. False also when that failed: error_.
  bool waits_for_cut(Lane& lane, std::optional<Event>& event);
  void answer_inline(Lane& lane);
  bool ask_announced(Lane& lane);
  void announced_came(Lane& lane, int error);
  void opened_came(Lane& lane, int error);
  struct Ahead {
    InodePtr inode{};
    std::vector<Streams::Piece> pieces{};
  };
  bool ask_streams(Lane& lane, Ahead& ahead);
  void ask_others(Lane& lane);
  void gather(Lane& lane);
  void piece_came(Lane& lane, int error);
  bool is_for_later() const noexcept { return announced_ || is_piece_; }
  // It has no lease to ask for, nor memory to wait for: then it ends without bytes.
  bool gives_up() const noexcept { return is_for_later() || opened_ != 0; }
  bool ask_cache(Lane& lane);
  bool is_of_stamp(Context& context);
  void offer_to_cache(Context& context);
  void ask_targets(Lane& lane);
  void note(const Call& call);
  void finish(Lane& lane);
  void answer(Lane& lane, int error);
  void reply(Context& context);
  void begin_near_end(Context& context);
  bool waits_for_end(Lane& lane);
  std::vector<std::shared_ptr<Operation>> end_near_end();
  void without_lease(Context& context);
  void spoil_pages(Context& context);
  std::shared_ptr<ReadOperation> self() {
    return std::static_pointer_cast<ReadOperation>(shared_from_this());
  }

  InodePtr inode_;
  uint64_t offset_ = 0;
  uint32_t size_ = 0;    // asked
  uint32_t length_ = 0;  // there, by the inode's size
  FileViewPtr view_;
  Buffer buffer_;
  Streams::Parts parts_;  // instead of it
  uint64_t losses_ = 0;
  uint32_t pending_ = 0;
  uint32_t restarts_ = 0;
  uint32_t ends_ = 0;
  int error_ = 0;
  bool again_ = false;
  bool registered_ = false;
  HandlePtr announced_;  // what is read is for announced.h, and this its handle
  uint64_t opened_ =
      0;  // what is read is for the kernel's pages, which is not told of this handle yet
  bool keeps_ = true;         // what is read may be for the local cache, too
  bool is_piece_ = false;     // what is read is for streams.h
  uint64_t closes_ = 0;       // the handle that ends with it; 0: none
  uint64_t question_ = 0;     // whose answer suffices; 0: none was asked
  bool fills_pages_ = false;  // of the kernel's
  bool near_end_ = false;     // it is in inode_->near_end
  uint64_t stamp_ = 0;  // of the bytes when it began (inode.h); 0: no matter for the local cache
  uint64_t file_size_ = 0;
  bool asked_cache_ = false;
  bool asked_streams_ = false;
  bool pauses_cuts_ = false;  // of the file by lanes
  CutWait cut_wait_;
  uint64_t cut_ = 0;  // its number in fuse/cut_reads.h, when that is done without a lease
};

}  // namespace braidfs::client
