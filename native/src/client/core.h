// Core is the data path of the client: it answers READ, WRITE, FLUSH, RELEASE and FSYNC for
// src/fuse.
//
// It owns the lanes and the parts that operations use (context.h), gives each request to the
// operation that does it (read.h, write.h, drain.h), and does what Python asks for through the
// methods below. It knows neither Python nor /dev/fuse: answers go out through a Replier. Threads:
// DataHandler's methods on lanes; everything else ANY THREAD, short, and without blocking, except
// stop(). Not here: names and attributes (src/names), the kernel's protocol (src/fuse).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/context.h"
#include "client/lanes.h"
#include "client/passthrough.h"
#include "rdma/rails.h"

namespace braidfs::client {

class Core final : public fuse::DataHandler {
 public:
  using Bytes = client::Bytes;
  using CutState = Inodes::CutState;
  using UseChild = OpenFiles::UseChild;
  static constexpr uint64_t kAttributesAlone = KernelReplies::kAttributesAlone;

  explicit Core(const CoreSettings& settings);
  ~Core() override;

  Context& context() noexcept { return context_; }

  // These four are called before the first request.
  void replier(fuse::Replier& replier) noexcept { context_.kernel().replier(replier); }
  void page_invalidator(KernelReplies::InvalidatePages invalidate, fuse::EofPages& eof_pages) {
    context_.kernel().invalidator(std::move(invalidate), eof_pages);
  }
  void written_noter(Commits::NoteWritten note) {
    context_.commits().written_noter(std::move(note));
  }
  void child_finder(OpenFiles::FindChild find) {
    context_.open_files().child_finder(std::move(find));
  }
  // From now on new files of at most so many bytes may lie in their inode's record; 0: none may.
  void inline_length(uint32_t length_max) noexcept { context_.commits().inline_length(length_max); }
  // Keeps bytes that were read in this directory (decision 0035). False: it failed, and `reason` is
  // a sentence that says why.
  bool use_cache(const cache::StoreSettings& settings, std::string& reason);
  // Lets the kernel read whole copies by itself. It is called after use_cache().
  void use_passthrough(BackingCalls calls);
  // The kernel has agreed to passthrough: from now on copies are made and used.
  void start_passthrough();
  Passthrough* passthrough() noexcept { return passthrough_.get(); }  // nullptr: there is none

  // 0, or -errno of a lane's event loop; then nothing may be started.
  int fault() const noexcept { return lanes_.fault(); }
  void start() { lanes_.start(); }
  // Sends dirty bytes for at most deadline_ms, and then ends the lanes. What still waits fails.
  void stop(uint32_t deadline_ms);
  size_t abort();

  // ---- fuse::DataHandler ----
  void read(fuse::LaneContext& at, const fuse::ReadRequest& request) override;
  void write(fuse::LaneContext& at, const fuse::WriteRequest& request) override;
  void flush(fuse::LaneContext& at, const fuse::FlushRequest& request) override;
  void release(fuse::LaneContext& at, const fuse::ReleaseRequest& request) override;
  void fsync(fuse::LaneContext& at, const fuse::FsyncRequest& request) override;
  bool born(Bytes attributes, Bytes layout, Bytes capability,
            const fuse::NewHandle& handle) override;
  fuse::Opening open(uint64_t ino, uint64_t fh, uint32_t open_flags) override {
    return context_.open_files().open(ino, fh, open_flags);
  }
  bool open_granted(Bytes attributes, Bytes layout, Bytes capability, uint64_t fh,
                    uint32_t open_flags) override {
    return context_.open_files().open_granted(attributes, layout, capability, fh, open_flags);
  }
  bool fetch_opened(fuse::LaneContext& at, const fuse::RequestHead& head, uint64_t fh) override;
  fuse::PassthroughChoice choose_passthrough(uint64_t ino, uint64_t fh,
                                             fuse::Sealing sealing) override;
  std::optional<fuse::Waiting> waiting(uint64_t unique) override;
  bool interrupt(uint64_t unique) override;
  fuse::Room room() const noexcept override { return context_.memory().room(); }
  std::span<std::byte> receive_buffer(fuse::LaneContext& at, size_t size) override;
  bool is_ahead(uint64_t ino) override { return context_.inodes().is_ahead(ino); }
  bool is_busy(uint64_t ino) override { return context_.inodes().is_busy(ino); }
  std::optional<Ahead> before_setting(uint64_t ino, bool sets_mtime) override {
    return context_.inodes().before_setting(ino, sets_mtime);
  }
  bool cut(fuse::LaneContext& at, const fuse::CutRequest& request) override;
  void set_ids_put(uint64_t ino, uint32_t mode, uint32_t gid) override {
    context_.inodes().set_ids_put(ino, mode, gid);
  }

  // ---- the cluster ----
  void node_put(uint32_t node);
  void target_put(uint32_t target, uint32_t node);
  // The cluster map says whether a target, which target_put() has told, is up. Lanes give up silent
  // connections to a node sooner while it is down, and resume at once what waited when it is up. It
  // may be called any number of times.
  void target_state(uint32_t target, bool is_up);
  // False: there is no such lane. Frames go over the channel if there is one.
  bool connection_put(uint32_t lane, uint32_t node, net::Socket socket,
                      std::shared_ptr<rdma::Channel> channel = {});
  bool connection_failed(uint32_t lane, uint32_t node);

  // ---- inodes and handles (inodes.h, open_files.h) ----
  bool inode_put(Bytes attributes, Bytes layout, Bytes capability) {
    return context_.inodes().put(attributes, layout, capability);
  }
  bool inode_resize(Bytes attributes, Bytes layout, Bytes capability);
  bool view_put(uint64_t ino, Bytes layout, Bytes capability) {
    return context_.inodes().view_put(ino, layout, capability);
  }
  void inode_drop(uint64_t ino) { context_.inodes().drop(ino); }
  std::optional<Written> inode_written(uint64_t ino) { return context_.inodes().written(ino); }
  std::optional<Written> inode_take(uint64_t ino) { return context_.inodes().take_written(ino); }
  bool inode_commits(uint64_t ino) { return context_.inodes().commits(ino); }
  bool closed_unsynced(uint64_t ino) { return context_.inodes().closed_unsynced(ino); }
  bool inode_failed(uint64_t ino) { return context_.inodes().fail(ino); }
  void size_limit_put(uint64_t ino, uint64_t limit) { context_.inodes().size_limit(ino, limit); }
  bool handle_put(uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
    return context_.open_files().put(fh, ino, open_flags, direct);
  }
  std::vector<HandlePtr> handles() { return context_.open_files().all(); }
  std::optional<names::BirthSince> birth_take(uint64_t ino, bool spare_open = false) {
    return context_.inodes().birth_take(ino, spare_open);
  }
  void creations_reported(std::span<const uint64_t> inos) {
    context_.inodes().creations_reported(inos);
  }
  // Answers a CUT event with what the file is after the cut, or with an error. False: the answer is
  // not news.
  bool cut_done(uint64_t ino, uint64_t number, Status status, Bytes attributes, Bytes layout,
                Bytes capability);
  CutState pause_cuts(uint64_t ino, bool paused) {
    return context_.inodes().pause_cuts(ino, paused);
  }
  bool inode_keep(uint64_t ino) { return context_.open_files().keep(ino); }
  uint32_t inode_unkeep(uint64_t ino) { return context_.open_files().unkeep(ino); }
  std::vector<uint64_t> inodes_granted() { return context_.open_files().granted(); }
  void pause_granted(bool paused) noexcept { context_.open_files().pause_granted(paused); }
  std::optional<uint32_t> take_granted(uint64_t ino) {
    return context_.open_files().take_granted(ino);
  }

  // ---- leases (docs/INTERFACES.md, section 7) ----
  void lease_until(Clock::time_point until) noexcept { context_.leases().until(until); }
  // Sets the kLease* bits that the session holds, and those that are recalled and not yet returned;
  // an unknown inode is ignored. True: a read or write went on under a recalled lease since the
  // last call, and the notifier may be about to drop its pages.
  bool inode_lease(uint64_t ino, uint32_t flags, uint32_t recalling);
  void inode_asked(uint64_t ino, int error);  // answers an ASK event
  // The ranges of the file that operations which wait for a lease request read or write.
  std::vector<std::pair<uint64_t, uint64_t>> asked_ranges(uint64_t ino);
  // The session was evicted, so what was written and not committed is lost. True: there was such a
  // loss, and every handle will report it.
  bool inode_lost(uint64_t ino);
  // Does the same for every inode. Returns the inodes that lost something, each with whether
  // written bytes were lost, and not durability alone.
  std::vector<std::pair<uint64_t, bool>> inodes_lost();

  // ---- prefetching (prefetch/prefetcher.h) ----
  void prefetch(uint64_t bytes_max, bool fills_pages) noexcept {
    context_.prefetcher().limit(bytes_max, fills_pages);
  }
  // Programs are going to read these files, given by inode number, in this order. Returns how many
  // of them are noted.
  size_t announce(std::span<const uint64_t> inos, bool replaces);
  // Pauses or resumes prefetching: while it is paused, no prefetch begins.
  void pause_fetching(bool paused);
  uint64_t fetching();
  // The machine's memory is short: prefetched bytes and idle buffers are released.
  void memory_is_short();

  // ---- waiting for targets and for Python ----
  void drain(uint64_t token, uint64_t ino, bool sync, bool commit);
  // Puts DONE when every lane has dealt with what it had read from the kernel.
  void barrier(uint64_t token);
  // Each puts DONE at its end. False: there is no such inode, or the range is not valid.
  bool punch(uint64_t token, uint64_t ino, uint64_t begin, uint64_t end);
  bool seek(uint64_t token, uint64_t ino, uint64_t from, bool hole);
  struct Extent {
    uint64_t ino = 0;
    uint64_t begin = 0;
  };
  bool copy(uint64_t token, const Extent& from, const Extent& to, uint64_t length, bool only_reach);
  bool commit_done(uint64_t token, Status status, Bytes attributes);  // false: unknown token

  std::vector<std::pair<std::string, uint64_t>> counters();
  rdma::Rails& rails() noexcept { return rails_; }
  LocalCache* local_cache() noexcept { return local_cache_.get(); }  // nullptr: there is none
  EventQueue& events() noexcept { return context_.events(); }
  int events_fd() const noexcept { return context_.events().fd(); }
  Memory& memory() noexcept { return context_.memory().memory(); }
  OpenRecord& record() noexcept { return context_.commits().record(); }
  Lane& lane(uint32_t index) noexcept { return lanes_.at(index); }
  net::EventLoop& loop(uint32_t index) noexcept { return lanes_.at(index).loop(); }
  uint32_t lane_count() const noexcept { return lanes_.count(); }

 private:
  bool quiet();
  cache::Copies* copies() noexcept;  // nullptr: copies are not used
  // Answers the operation with an error if it was not answered before.
  void answer_error(Operation& operation, int error) noexcept;
  void wake(uint64_t ino, std::vector<Inode::Waiter> waiting);

  Context context_;
  rdma::Rails rails_;                        // outlives the lanes
  Lanes lanes_;                              // after what lanes use, so that they end first
  std::unique_ptr<LocalCache> local_cache_;  // it uses their loops, so it goes before them
  std::unique_ptr<Passthrough> passthrough_;
};

}  // namespace braidfs::client
