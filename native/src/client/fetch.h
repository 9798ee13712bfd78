// The bytes of one extent of a file, on their way into one buffer: from the record that the file
// lies in, from the local cache, or from the targets.
//
// Fetch is part of an operation (its user), which lives as long as something is on its way. The
// user lets it look at the inode (view, size, stamp, written pieces), gives it a buffer, and has it
// ask; fetched() ends that. The extent is cut into spans by the layout; each goes as one READ frame
// on the lane's own connections and is received into its place. What a target does not have is
// zeros: a short reply, a hole, an object that never was. When the file has another truncate epoch
// by then, or a target lost what was not synced, the user begins again (kRestartsMax).
// Invariant: a buffer that is lent to calls stays until the last of them has ended, whether the
// user was answered meanwhile or not. Threads: one at a time, the lane that let the user proceed;
// methods marked LOCKED need the inode's mutex.
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
  // The bytes are there, or an errno: once for each Fetch::ask(), unless it begins again.
  virtual void fetched(Lane& lane, int error) = 0;
  // What was fetched is not to be used: the user looks at the inode again.
  virtual void begin_again(Lane& lane) { proceed(lane); }
  // It is about to wait: whoever may interrupt it must find it from now on. LOCKED inode.
  virtual void about_to_wait(Lane& /*lane*/) {}
  void call_done(Lane& /*lane*/, Call& /*call*/) final {}  // its calls are the Fetch's
};

class Fetch final : public CallOwner {
 public:
  explicit Fetch(FetchUser& user) : user_(user) {}
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  void begin(const InodePtr& inode, uint64_t offset, uint32_t size);
  // Its calls end at the first refusal or lost connection.
  void ask_once() noexcept { once_ = true; }
  // Lets go of everything. No call is under way.
  void end();

  // What is to be done behind the inode's mutex when the user waits.
  struct Wait {
    InodePtr inode{};
    Actions actions{};
    std::optional<Event> event{};
    void act(Lane& lane);
  };
  // Both LOCKED. What the inode has now: view, size, stamp; then whether cuts that the metaserver
  // is to be told of, or written pieces, are in the way: the user proceeds when they may be no
  // more. False also of an error().
  void look(Context& context);
  bool waits(Lane& lane, Wait& wait);
  // Both, of a user that looks at nothing else.
  bool looks_and_waits(Lane& lane);
  // Nobody is waited for any more: lanes may cut the file again.
  void waits_no_more();

  // False: there is no memory for it.
  bool take_buffer(Context& context);
  // Its bytes are in these parts, as if it had asked for them. False: there is no memory for them.
  bool take_parts(Context& context, const prefetch::Parts& parts);
  // Has its view and a buffer. fetched() follows, or begin_again().
  void ask(Lane& lane);
  void call_done(Lane& lane, Call& call) override;

  const InodePtr& inode() const noexcept { return inode_; }
  uint64_t offset() const noexcept { return offset_; }
  uint32_t size() const noexcept { return size_; }      // wanted
  uint32_t length() const noexcept { return length_; }  // there, by the inode's size
  bool is_whole() const noexcept { return length_ == size_; }
  uint64_t file_size() const noexcept { return file_size_; }
  // Of the bytes when it looked (inode.h); 0: nobody but the user is to have them.
  uint64_t stamp() const noexcept { return stamp_; }
  CachedExtent extent() const noexcept {
    return {inode_->ino(), stamp_, file_size_, offset_, length_};
  }
  bool lies_inline() const noexcept { return !view_->inline_bytes.empty(); }
  int error() const noexcept { return error_; }  // of waiting for a cut
  Buffer& buffer() noexcept { return buffer_; }
  std::span<std::byte> bytes() const noexcept { return buffer_.span().first(length_); }
  // What was read are the bytes of stamp(), if that still is the file's: a change since it looked
  // would show.
  bool is_current(Context& context);
  // To the local cache, unless they came from there or lie in the inode's record.
  void offer_to_cache(Context& context);

 private:
  static constexpr uint32_t kRestartsMax = 8;

  bool waits_for_cut(Lane& lane, Wait& wait);
  void answer_inline(Lane& lane);
  bool ask_cache(Lane& lane);
  void ask_targets(Lane& lane);
  void ask_target(Lane& lane, const Span& span, std::span<std::byte> place);
  void note(const Call& call);
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
  uint64_t losses_ = 0;  // Incarnations::losses() when it looked
  uint32_t pending_ = 0;
  uint32_t restarts_ = 0;
  int error_ = 0;
  bool again_ = false;
  bool once_ = false;
  bool asked_cache_ = false;
  bool is_kept_ = false;      // what was fetched lies in the local cache or in the record already
  bool pauses_cuts_ = false;  // of the file by lanes
  CutWait cut_wait_;
};

}  // namespace braidfs::client
