// The file-byte half of the client: answers READ, WRITE, FLUSH, RELEASE and FSYNC of the FUSE half.
//
// It owns the lanes, the tables, the memory budgets and the event queue, and gives each request to
// the operation that does it (read.h, write.h, drain.h). It knows neither Python nor /dev/fuse:
// what Python does to it comes through the methods below, answers go out through a Replier.
// Threads: DataHandler's methods on lanes; everything else ANY THREAD, short, never blocking
// (stop() excepted).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/announced.h"
#include "client/events.h"
#include "client/fetch_ahead.h"
#include "client/lane.h"
#include "client/local_cache.h"
#include "client/memory.h"
#include "client/open_record.h"
#include "client/passthrough.h"
#include "client/pieces.h"
#include "client/streams.h"
#include "client/tables.h"
#include "client/whole_reads.h"
#include "fuse/cut_reads.h"
#include "fuse/request.h"
#include "rdma/rails.h"

namespace braidfs::client {

class ReadOperation;
class DrainOperation;

struct CoreSettings {
  uint32_t lane_count = 1;
  MemoryLimits memory{};
  uint64_t dirty_bytes_per_inode_max = 64u << 20;
  uint32_t timeout_ms = 60'000;  // 0: wait for ever
  uint32_t silence_ms_max =
      10'000;  // a connection that owes answers and says nothing, not even to a PING, is cut
  uint32_t gather_ms =
      1;  // small writes that nobody waits for leave a node's connection so far apart
  uint32_t sync_after_ms = 5'000;  // what nobody syncs is synced after about so long
  uint32_t busy_poll_us = 0;  // a lane with few calls in work looks for events so long, at most
};

class Core final : public fuse::DataHandler {
 public:
  explicit Core(const CoreSettings& settings);
  ~Core() override;

  // Before the first request.
  void replier(fuse::Replier& replier) noexcept { replier_ = &replier; }
  // 0, or -errno of a lane's event loop: then nothing may be started.
  int fault() const noexcept;
  void start();
  // Sends what is dirty, for at most deadline_ms, then ends the lanes. Fails what still waits.
  void stop(uint32_t deadline_ms);
  bool is_stopping() const noexcept { return stopped_; }  // any thread

  // ---- fuse::DataHandler ----
  void read(fuse::LaneContext& context, const fuse::ReadRequest& request) override;
  void write(fuse::LaneContext& context, const fuse::WriteRequest& request) override;
  void flush(fuse::LaneContext& context, const fuse::FlushRequest& request) override;
  void release(fuse::LaneContext& context, const fuse::ReleaseRequest& request) override;
  void fsync(fuse::LaneContext& context, const fuse::FsyncRequest& request) override;
  bool born(std::span<const std::byte> attributes, std::span<const std::byte> layout,
            std::span<const std::byte> capability, const fuse::NewHandle& handle) override;
  fuse::Opening open(uint64_t ino, uint64_t fh, uint32_t open_flags) override;
  bool open_granted(std::span<const std::byte> attributes, std::span<const std::byte> layout,
                    std::span<const std::byte> capability, uint64_t fh,
                    uint32_t open_flags) override;
  bool fetch_opened(fuse::LaneContext& context, const fuse::RequestHead& head,
                    uint64_t fh) override;
  fuse::Passing pass(uint64_t ino, uint64_t fh, fuse::Sealing sealing) override;
  std::optional<fuse::Waiting> waiting(uint64_t unique) override;
  bool interrupt(uint64_t unique) override;
  fuse::Room room() const noexcept override {
    if (!memory_.full()) return fuse::Room::kPlenty;
    return memory_.overfull() ? fuse::Room::kNone : fuse::Room::kLittle;
  }
  std::span<std::byte> landing(fuse::LaneContext& context, size_t size) override;
  bool is_ahead(uint64_t ino) override;
  // From now on new files of so many bytes may lie in their inode's record; 0: none. Before
  // start().
  void inline_births(uint32_t length_max) noexcept { inline_length_max_ = length_max; }
  uint32_t inline_length_max() const noexcept { return inline_length_max_; }
  // Python takes the birth: what was committed with it until now. What comes later is committed as
  // ever, and its RELEASE is told if it is open. spare_open: then nothing is taken.
  std::optional<names::BirthSince> birth_take(uint64_t ino, bool spare_open = false);
  // Size and time that were committed with a birth: tables of attributes are to have them.
  using NoteWritten = std::function<void(uint64_t ino, const Written& written)>;
  void written_noter(NoteWritten note) {
    note_written_ = std::move(note);
  }  // before the first request
  void note_written(const Inode& inode) {
    if (note_written_) note_written_(inode.ino(), inode.in_commit);
  }
  // The metaserver is told of these births as they are: nothing more can come along with them.
  void births_told(std::span<const uint64_t> inos);
  bool is_busy(uint64_t ino) override;
  std::optional<Ahead> before_setting(uint64_t ino, bool sets_mtime) override;
  bool cut(fuse::LaneContext& context, const fuse::CutRequest& request) override;
  void set_ids_put(uint64_t ino, uint32_t mode, uint32_t gid) override;

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

  // ---- tables; false: malformed records, or the table is full ----
  using Bytes = std::span<const std::byte>;
  bool inode_put(Bytes attributes, Bytes layout, Bytes capability);
  bool inode_resize(Bytes attributes, Bytes layout, Bytes capability);
  // False also of an unknown inode, or a view that is older than its own (Inode::view_put).
  bool view_put(uint64_t ino, Bytes layout, Bytes capability);
  void inode_drop(uint64_t ino);
  // Answers a CUT event: what the file is since, or an error. False: that is no news.
  bool cut_done(uint64_t ino, uint64_t number, Status status, Bytes attributes, Bytes layout,
                Bytes capability);
  // Lanes do not cut the file by themselves as long as anybody has paused that.
  enum class CutState : uint8_t { kUnknown, kTold, kUntold };
  CutState pause_cuts(uint64_t ino, bool paused);
  // From now on lanes open it for reading by themselves while its bytes are leased. False: unknown.
  bool inode_keep(uint64_t ino);
  // Those that lanes have open by open_granted(): Python knows of none of them.
  std::vector<uint64_t> inodes_granted();
  // No file is opened by open_granted() while this is so.
  void pause_granted(bool paused) noexcept { granted_paused_ = paused; }
  // No longer, whichever way lanes came to have it. Returns how many handles they opened that are
  // not closed: their RELEASEs are told.
  uint32_t inode_unkeep(uint64_t ino);
  // The same, of one that lanes have by open_granted(); nullopt: they have not.
  std::optional<uint32_t> take_granted(uint64_t ino);
  std::optional<Written> inode_written(uint64_t ino);
  std::optional<Written> inode_take(uint64_t ino);
  // What a drain has taken before is on its way to the metaserver, or to Python.
  bool inode_commits(uint64_t ino);
  void size_limit_put(uint64_t ino, uint64_t limit);  // Inode::kUnlimited: none
  bool handle_put(uint64_t fh, uint64_t ino, uint32_t open_flags,
                  bool direct);  // false: unknown inode

  // ---- leases (docs/INTERFACES.md, section 7) ----
  // Until the first call leases do not count: every file is taken for exclusively ours.
  void lease_until(Clock::time_point until) noexcept;
  // kLease* held, and those that are recalled but not returned; nothing for an unknown inode.
  // True: something passed since it was told last, whose pages the notifier may be about to drop.
  bool inode_lease(uint64_t ino, uint32_t flags, uint32_t passing);
  void inode_asked(uint64_t ino, int error);  // answers an ASK event
  // The session was evicted: what was written and not committed is lost. True when there was any;
  // then every handle learns of it.
  bool inode_lost(uint64_t ino);
  // A process before this one took along what was written to it: its handles are told EIO.
  bool inode_failed(uint64_t ino);
  // The same for every inode; those that lost something, and whether it was more than durability.
  std::vector<std::pair<uint64_t, bool>> inodes_lost();
  // LOCKED inode. One of these leases is held.
  bool holds(const Inode& inode, uint32_t flags) const noexcept;
  bool leases_count() const noexcept { return lease_until_ != kLeasesDoNotCount; }
  // Has Python get a lease on the inode's bytes, and its present state; the operation proceeds when
  // that was answered, or leases changed. `question` is set to the number of the question (see
  // Inode::Asking) whose answer is young enough for it. ANY LANE.
  void ask(const InodePtr& inode, Inode::Waiter waiter, uint64_t& question);
  // The parts of the file that operations which wait so have to do with.
  std::vector<std::pair<uint64_t, uint64_t>> asked_ranges(uint64_t ino);
  // The kernel's pages of that part of a file are not to be kept. When they are gone `read` of
  // cut_reads() ends (0: none), and `then` is called. ANY LANE.
  void spoil_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read = 0,
                   std::function<void()> then = {});
  // The kernel asks for the inode's attributes again before it believes them; `then` is called. ANY
  // LANE.
  void forget_attributes(uint64_t ino, std::function<void()> then) {
    spoil_pages(ino, kAttributesAlone, 0, 0, std::move(then));
  }
  static constexpr uint64_t kAttributesAlone = ~uint64_t{0};  // as an offset: no pages
  using SpoilPages = std::function<void(uint64_t ino, uint64_t offset, uint64_t length,
                                        uint64_t read, std::function<void()> then)>;
  void page_spoiler(SpoilPages spoil, fuse::CutReads& cut) {  // before the first request
    spoil_pages_ = std::move(spoil);
    cut_reads_ = &cut;
  }
  fuse::CutReads* cut_reads() noexcept { return cut_reads_; }  // nullptr: there is no kernel

  void announced_limit(uint64_t bytes_max) noexcept { announced_.limit(bytes_max); }
  // These files, by inode number, are going to be read in this order (announced.h). Returns how
  // many are noted.
  size_t announce(std::span<const uint64_t> inos, bool replaces);
  // Nothing more that nobody asked for is fetched, or again.
  void pause_fetching(bool paused);
  uint64_t fetching() const { return announced_.under_way() + streams_.under_way(); }
  // Small files may be fetched as they are opened (whole_reads.h).
  void open_fetch(bool on) noexcept { whole_reads_.turn(on); }
  // Servers may be told of files that are going to be read (fetch_ahead.h).
  void turn_fetch_ahead(bool on) noexcept {
    fetch_ahead_.turn(on);
    whole_reads_.watch(on);
  }
  // This one is, like others of its directory; send_fetches() behind the last of them.
  void fetch_ahead(const Attributes& attributes, const FileView& view);
  void send_fetches();
  void stream_limit(uint64_t bytes_max) noexcept { streams_.limit(bytes_max); }
  // Calls use(attributes, layout, capability) for a file that lanes know by its directory's grant.
  using UseChild = std::function<void(Bytes, Bytes, Bytes)>;
  using FindChild = std::function<void(uint64_t ino, const UseChild& use)>;
  void child_finder(FindChild find) { find_child_ = std::move(find); }  // before the first request

  // Every open handle.
  std::vector<HandlePtr> handles() { return handles_.all(); }

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
  size_t abort();
  std::vector<std::pair<std::string, uint64_t>> counters();

  // Before start(): what is read is kept in this directory (decision 0035). False, and a sentence.
  bool use_cache(const cache::StoreSettings& settings, std::string& reason);

  // Before start(), behind use_cache(): the kernel reads whole copies by itself.
  void use_passthrough(BackingCalls calls);
  // It was agreed with the kernel: copies are made from now on, and used.
  void start_passthrough();
  Passthrough* passthrough() noexcept { return passthrough_.get(); }  // nullptr: there is none

  // The machine is: what is kept for later goes.
  void memory_is_short() {
    announced_.let_go();
    streams_.let_go();
    memory_.give_back();
  }

  // ---- for lanes and operations ----
  Announced& announced() noexcept { return announced_; }
  // Begins with what is announced next, if there is room. On that lane.
  void fetch_announced(Lane& lane);
  // What was fetched, or could not be: `handle` is done with.
  void announced_came(Lane& lane, const HandlePtr& handle, uint64_t stamp, uint32_t size,
                      Buffer bytes);
  void fetch_ended(Lane& lane, FetchAhead::Batch batch, FetchAhead::Outcome outcome);
  Streams& streams() noexcept { return streams_; }
  // A piece of a stream, or (empty) none.
  void piece_came(Lane& lane, const CachedExtent& extent, Buffer bytes);
  LocalCache* local_cache() noexcept { return local_cache_.get(); }  // nullptr: there is none
  rdma::Rails& rails() noexcept { return rails_; }
  EventQueue& events() noexcept { return events_; }
  int events_fd() const noexcept { return events_.fd(); }
  Memory& memory() noexcept { return memory_; }
  HeldQueue& held() noexcept { return held_; }
  OpenRecord& record() noexcept { return record_; }
  // LOCKED inode: something was written that is not durable.
  void note_unclean(Inode& inode) noexcept {
    if (inode.noted == OpenRecord::kNone) {
      inode.noted = record_.put({.ino = inode.ino(), .kind = OpenRecord::Kind::kUnclean});
    }
  }
  WaitingTable& waiting() noexcept { return waiting_; }
  fuse::Replier& replier() noexcept { return *replier_; }
  Lane& lane(uint32_t index) noexcept { return *lanes_[index]; }
  net::EventLoop& loop(uint32_t index) noexcept { return lanes_[index]->loop(); }
  uint32_t lane_count() const noexcept { return static_cast<uint32_t>(lanes_.size()); }
  const CoreSettings& settings() const noexcept { return settings_; }
  Clock::time_point deadline_after(Clock::time_point now) const noexcept;

  // Answers once; later answers are void.
  void answer_error(Operation& operation, int error) noexcept;
  void capability_refused(Inode& inode);
  // A reply of this target carried this incarnation: when it rose, held pieces are sent again. When
  // it returns they are queued, whichever lane was the first to see it.
  void incarnation_seen(Lane& lane, uint32_t target, uint64_t incarnation);
  // The newest one that was seen: what an older one acknowledged is lost. May be asked with an
  // inode locked; a piece that is acknowledged under that lock is then seen by whoever goes over
  // the pieces of a loss.
  uint64_t incarnation(uint32_t target);
  // A target had no room a moment ago: writes go through, so that write(2) is told (rule 24).
  void no_room(Clock::time_point now) noexcept {
    scarce_until_ = (now + kScarceTime).time_since_epoch().count();
  }
  bool is_scarce(Clock::time_point now) const noexcept {
    return now.time_since_epoch().count() < scarce_until_;
  }
  // Rises after the held pieces of a restarted target were queued again: a READ that saw it change
  // may have read what the target lost, and reads again.
  uint64_t losses() const noexcept { return losses_.load(); }
  uint64_t commit_begin(std::shared_ptr<DrainOperation> operation);  // the token of its event
  void handle_closed(Handle& handle);
  // The metaserver could not be told where the file was cut, and this is the last handle that it is
  // open by.
  void lose_last(Handle& handle);
  // What was fetched with an OPEN, the whole file (stamp 0: nothing), becomes its pages in the
  // kernel. False: they are not there, or not right.
  bool store_pages(Inode& inode, uint64_t stamp, uint64_t nodeid, Bytes bytes);
  void close_own(uint64_t fh);  // a handle that nobody but a lane knows of
  void send_all_partial();
  void hurry();                 // writes that gather leave: somebody waits
  void tell_cut(Inode& inode);  // if there is one, and none is under way
  void inode_idle(const InodePtr& inode);

 private:
  static constexpr auto kScarceTime = std::chrono::seconds(5);
  static constexpr Clock::rep kLeasesDoNotCount = std::numeric_limits<Clock::rep>::max();
  bool quiet();
  static constexpr uint64_t kInlineKeptMax = 64u << 20;
  void count_kept(Inode& inode, uint64_t bytes);  // LOCKED inode
  // LOCKED inode: a handle of the lanes' own. False: no room, or the inode has left the table.
  bool open_own(const InodePtr& inode, uint64_t fh, uint32_t open_flags);
  // A handle that is in no table, under which an announced file is fetched; nullptr: not that file.
  HandlePtr open_announced(uint64_t ino);
  HandlePtr open_unlisted(const InodePtr& inode, bool granted);
  void fetch_announced_later(Lane& lane);
  void send_fetches(Lane& lane);
  static bool is_last(Inode& inode);  // of its handles, with the one that is being closed
  cache::Copies* copies() noexcept;   // nullptr: there are to be none
  bool enter(Handle handle);  // into the tables. False: that handle is there already, or no room
  Lane& lane_of(uint64_t ino) noexcept { return *lanes_[ino % lanes_.size()]; }
  Inode::Loss lose(const InodePtr& inode);
  uint64_t settled_incarnation(uint32_t target);
  void resend_lost(Lane& lane, uint32_t target, uint64_t incarnation);
  void wake(uint64_t ino, std::vector<Inode::Waiter> waiting);

  const CoreSettings settings_;
  EventQueue events_;
  Memory memory_;
  HeldQueue held_;
  OpenRecord record_;
  WaitingTable waiting_;
  InodeTable inodes_{kInodesMax};
  HandleTable handles_{kHandlesMax};
  fuse::Replier* replier_ = nullptr;
  SpoilPages spoil_pages_;
  FindChild find_child_;
  NoteWritten note_written_;
  Announced announced_;
  std::atomic<bool> announced_expire_ = false;  // a timer runs
  FetchAhead fetch_ahead_;
  Streams streams_;
  std::atomic<bool> streams_expire_ = false;  // a timer runs
  fuse::CutReads* cut_reads_ = nullptr;
  std::atomic<Clock::rep> lease_until_ = kLeasesDoNotCount;
  std::atomic<uint64_t> losses_ = 0;
  std::atomic<Clock::rep> scarce_until_ = 0;
  std::atomic<bool> sending_partial_ = false;
  std::atomic<uint64_t> own_opens_ = 0;
  std::atomic<uint64_t> granted_opens_ = 0;
  std::atomic<uint64_t> opens_stored_ = 0;
  WholeReads whole_reads_;
  std::atomic<bool> granted_paused_ = false;

  std::shared_mutex incarnations_mu_;
  struct Incarnation {
    uint64_t newest = 0;   // that was seen
    uint64_t settled = 0;  // whose loss was seen to: what older ones held is queued again
  };
  std::unordered_map<uint32_t, Incarnation> incarnations_;  // guarded by incarnations_mu_
  std::mutex loss_mu_;                                      // one loss at a time

  std::mutex commits_mu_;
  std::map<uint64_t, std::shared_ptr<DrainOperation>> commits_;  // guarded by commits_mu_
  uint64_t commit_token_ = uint64_t{1} << 62;                    // apart from Python's own tokens

  std::atomic<uint32_t> inline_length_max_ = 0;
  std::atomic<uint64_t> inline_kept_ = 0;  // bytes of kept inodes' views
  std::atomic<bool> stopped_ = false;
  rdma::Rails rails_;                         // outlives the lanes
  std::vector<std::unique_ptr<Lane>> lanes_;  // behind what they use: they end first
  std::unique_ptr<LocalCache> local_cache_;   // in their loops: it goes before them
  std::unique_ptr<Passthrough> passthrough_;
};

}  // namespace braidfs::client
