// Fetches the bytes of one extent of a file into one buffer: from the record that the file lies in,
// from the local cache, or from the targets.
//
// A Fetch is part of an operation, its user, which lives as long as anything is under way. The user
// makes it look at the inode (view, size, stamp, written pieces), gives it a buffer and calls
// ask(); the Fetch calls fetched() at the end. The layout cuts the extent into spans. Each span
// goes as one READ frame on the lane's own connections, and its bytes are received into their
// place. What a target does not have is zeros: a short reply, a hole, an object that was never
// made. If the file's truncate epoch has changed meanwhile, or a target has lost unsynced bytes,
// the user begins again, at most kRestartsMax times.
//
// Invariant: a buffer that is lent to calls stays until the last of them has ended, even if the
// user was answered before. Threads: one at a time, the lane that let the user proceed; methods
// marked LOCKED need the inode's mutex. Not here: leases (read.h), prefetching
// (prefetch/prefetcher.h).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "client/context.h"
#include "client/lane.h"

namespace braidfs::client {

// An operation that has a Fetch.
class FetchUser : public Operation {
 public:
  // The bytes are there, or there is an errno. It is called once for each Fetch::ask(), unless
  // begin_again() is called instead.
  virtual void fetched(Lane& lane, int error) = 0;
  // The fetched bytes must not be used: the user looks at the inode again.
  virtual void begin_again(Lane& lane) { proceed(lane); }
  // The user is about to wait. From now on whoever may interrupt it must find it. LOCKED inode.
  virtual void about_to_wait(Lane& /*lane*/) {}
  void call_done(Lane& /*lane*/, Call& /*call*/) final {}  // its Fetch owns the calls
};

class Fetch final : public CallOwner {
 public:
  explicit Fetch(FetchUser& user) : user_(user) {}
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  void begin(const InodePtr& inode, uint64_t offset, uint32_t size);
  // Makes its calls end at the first refusal or lost connection.
  void ask_once() noexcept { once_ = true; }
  // Releases everything. No call may be under way.
  void end();

  // What the caller must do when it has released the inode's mutex and the user waits.
  struct Wait {
    InodePtr inode{};
    Actions actions{};
    std::optional<Event> event{};
    void act(Lane& lane);
  };
  // look() notes what the inode has now: view, size and stamp. waits() then tells whether something
  // is in the way: cuts that must be reported to the metaserver first, or written pieces. If so,
  // the user proceeds when that may be over. False also if there is an error(). Both are LOCKED.
  void look(Context& context);
  bool waits(Lane& lane, Wait& wait);
  // Takes the inode's mutex for look() and waits(), for a user that looks at nothing else.
  bool looks_and_waits(Lane& lane);
  // The Fetch waits no more, so lanes may cut the file again.
  void waits_no_more();

  // False: there is no memory for the buffer.
  bool take_buffer(Context& context);
  // Takes the bytes from these parts, as if it had asked for them. False: there is no memory for
  // them.
  bool take_parts(Context& context, const prefetch::Parts& parts);
  // Begins to fetch; look() and take_buffer() were called. fetched() or begin_again() follows.
  void ask(Lane& lane);
  void call_done(Lane& lane, Call& call) override;

  const InodePtr& inode() const noexcept { return inode_; }
  uint64_t offset() const noexcept { return offset_; }
  uint32_t size() const noexcept { return size_; }      // wanted
  uint32_t length() const noexcept { return length_; }  // up to the file's end
  bool is_whole() const noexcept { return length_ == size_; }
  uint64_t file_size() const noexcept { return file_size_; }
  // The stamp of the bytes at the time of look() (inode.h). 0: only the user may have the bytes.
  uint64_t stamp() const noexcept { return stamp_; }
  CachedExtent extent() const noexcept {
    return {inode_->ino(), stamp_, file_size_, offset_, length_};
  }
  bool lies_inline() const noexcept { return !view_->inline_bytes.empty(); }
  int error() const noexcept { return error_; }  // of the wait for a cut
  Buffer& buffer() noexcept { return buffer_; }
  std::span<std::byte> bytes() const noexcept { return buffer_.span().first(length_); }
  // Whether the fetched bytes are those of stamp(): the stamp is still the file's, so no change
  // since look() has been missed.
  bool is_current(Context& context);
  // Offers the bytes to the local cache, unless they came from there or lie in the inode's record.
  void offer_to_cache(Context& context);

 private:
  static constexpr uint32_t kRestartsMax = 8;

  bool waits_for_cut(Lane& lane, Wait& wait);
  void answer_inline(Lane& lane);
  bool ask_cache(Lane& lane);
  void ask_targets(Lane& lane);
  void ask_target(Lane& lane, const Span& span, std::span<std::byte> place);
  void note(Context& context, const Call& call);
  bool may_be_replaced(Context& context, const Call& call);
  void finish(Lane& lane);

  FetchUser& user_;
  InodePtr inode_;
  uint64_t offset_ = 0;
  uint32_t size_ = 0;
  uint32_t length_ = 0;
  FileViewPtr view_;
  Buffer buffer_;
  uint64_t stamp_ = 0;
  uint64_t file_size_ = 0;
  uint64_t losses_ = 0;  // Incarnations::losses() at the time of look()
  uint32_t pending_ = 0;
  uint32_t restarts_ = 0;
  int error_ = 0;
  bool again_ = false;
  bool once_ = false;
  bool asked_cache_ = false;
  bool is_kept_ = false;      // the bytes lie in the local cache or in the record already
  bool pauses_cuts_ = false;  // it keeps lanes from cutting the file
  CutWait cut_wait_;
};

}  // namespace braidfs::client
