// The file-byte half of the client: answers READ, WRITE, FLUSH, RELEASE and FSYNC of the FUSE half.
//
// It owns the parts that operations use (context.h) and the lanes, gives each request to the
// operation that does it (read.h, write.h, drain.h), and does what Python asks for through the
// methods below. It knows neither Python nor /dev/fuse: answers go out through a Replier.
// Threads: DataHandler's methods on lanes; everything else ANY THREAD, short, never blocking
// (stop() excepted).
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

  // Before the first request.
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
  // From now on new files of so many bytes may lie in their inode's record; 0: none.
  void inline_births(uint32_t length_max) noexcept { context_.commits().inline_length(length_max); }
  // What is read is kept in this directory (decision 0035). False, and a sentence.
  bool use_cache(const cache::StoreSettings& settings, std::string& reason);
  // Behind use_cache(): the kernel reads whole copies by itself.
  void use_passthrough(BackingCalls calls);
  // It was agreed with the kernel: copies are made from now on, and used.
  void start_passthrough();
  Passthrough* passthrough() noexcept { return passthrough_.get(); }  // nullptr: there is none

  // 0, or -errno of a lane's event loop: then nothing may be started.
  int fault() const noexcept { return lanes_.fault(); }
  void start() { lanes_.start(); }
  // Sends what is dirty, for at most deadline_ms, then ends the lanes. Fails what still waits.
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
  fuse::Passing pass(uint64_t ino, uint64_t fh, fuse::Sealing sealing) override;
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
  // Of the cluster map, for a target that target_put() told: lanes give up silent connections to a
  // node that is down sooner, and go on at once with what waited when it is up. Any number of
  // times.
  void target_state(uint32_t target, bool is_up);
  // False: no such lane. Frames go over the channel when there is one.
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
  bool inode_failed(uint64_t ino) { return context_.inodes().fail(ino); }
  void size_limit_put(uint64_t ino, uint64_t limit) { context_.inodes().size_limit(ino, limit); }
  bool handle_put(uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
    return context_.open_files().put(fh, ino, open_flags, direct);
  }
  std::vector<HandlePtr> handles() { return context_.open_files().all(); }
  std::optional<names::BirthSince> birth_take(uint64_t ino, bool spare_open = false) {
    return context_.inodes().birth_take(ino, spare_open);
  }
  void births_told(std::span<const uint64_t> inos) { context_.inodes().births_told(inos); }
  // Answers a CUT event: what the file is since, or an error. False: that is no news.
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
  // kLease* held, and those that are recalled but not returned; nothing for an unknown inode.
  // True: something passed since it was told last, whose pages the notifier may be about to drop.
  bool inode_lease(uint64_t ino, uint32_t flags, uint32_t recalling);
  void inode_asked(uint64_t ino, int error);  // answers an ASK event
  // The parts of the file that operations which wait for a lease request have to do with.
  std::vector<std::pair<uint64_t, uint64_t>> asked_ranges(uint64_t ino);
  // The session was evicted: what was written and not committed is lost. True when there was any;
  // then every handle learns of it.
  bool inode_lost(uint64_t ino);
  // The same for every inode; those that lost something, and whether it was more than durability.
  std::vector<std::pair<uint64_t, bool>> inodes_lost();

  // ---- what is read before anybody asks (prefetch/prefetcher.h) ----
  void prefetch(uint64_t bytes_max, bool fills_pages) noexcept {
    context_.prefetcher().limit(bytes_max, fills_pages);
  }
  // These files, by inode number, are going to be read in this order. Returns how many are noted.
  size_t announce(std::span<const uint64_t> inos, bool replaces);
  // Nothing more that nobody asked for is fetched, or again.
  void pause_fetching(bool paused);
  uint64_t fetching();
  // The machine's memory is short: what is kept for later goes.
  void memory_is_short();

  // ---- waiting for targets and for Python ----
  void drain(uint64_t token, uint64_t ino, bool sync, bool commit);
  // → DONE when every lane has dealt with what it had read from the kernel.
  void barrier(uint64_t token);
  // → DONE; false: no such inode, or not a range.
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
  cache::Copies* copies() noexcept;  // nullptr: there are to be none
  // Answers once; later answers are void.
  void answer_error(Operation& operation, int error) noexcept;
  void wake(uint64_t ino, std::vector<Inode::Waiter> waiting);

  Context context_;
  rdma::Rails rails_;                        // outlives the lanes
  Lanes lanes_;                              // behind what they use: they end first
  std::unique_ptr<LocalCache> local_cache_;  // in their loops: it goes before them
  std::unique_ptr<Passthrough> passthrough_;
};

}  // namespace braidfs::client
