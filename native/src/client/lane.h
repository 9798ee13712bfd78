// One thread of the data path: its event loop, its connections to nodes, and its calls in work.
//
// A lane sends calls, decides what a status means for them (they are finished, or are sent again
// after a rest), watches deadlines, and sends partial pieces that have aged. A tick runs only while
// there is something to watch. Calls are recycled. Invariant: owners of calls are shared pointers,
// so they outlive the memory that is lent from them. Threads: LANE ONLY, except post(). Not here:
// frames and connections (link.h), what the bytes are for (operations, inode.h), and what is done
// with a lane's inodes (LaneDuties).
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "client/call.h"
#include "client/events.h"
#include "client/link.h"
#include "client/memory.h"
#include "client/recycled.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Context;
class EarlyFetch;
class Inode;
class OpenedFetch;
class Operation;
class ReadOperation;

// The lane writes them; any thread may read them.
struct alignas(64) LaneCounters {
  std::atomic<uint64_t> reads = 0;
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<uint64_t> inline_reads = 0;
  std::atomic<uint64_t> inline_births = 0;
  std::atomic<uint64_t> inline_writes = 0;
  std::atomic<uint64_t> commits_with_births = 0;
  std::atomic<uint64_t> writes = 0;
  std::atomic<uint64_t> bytes_written = 0;
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> retries = 0;
  std::atomic<uint64_t> connections_lost = 0;
  std::atomic<uint64_t> cuts = 0;  // of files, which are reported to the metaserver later
};

// What others do for a lane's inodes: they know of pieces and drains, a lane does not.
struct LaneDuties {
  // Sends the partial pieces that have aged. False: look again later.
  bool (*send_aged)(Lane& lane, const std::shared_ptr<Inode>& inode, Clock::time_point now);
  // Sends all partial pieces.
  void (*send_partial)(Lane& lane, const std::shared_ptr<Inode>& inode);
  // Syncs in the background; Lane::background_synced() follows.
  void (*sync)(Lane& lane, std::shared_ptr<Inode> inode);
  // Queues again what is held for a target that has lost it.
  void (*resend_lost)(Lane& lane, uint32_t target, uint64_t incarnation);
};

class Lane {
 public:
  Lane(Context& context, uint32_t index, const LaneDuties& duties);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  uint32_t index() const noexcept { return index_; }
  Context& context() noexcept { return context_; }
  net::EventLoop& loop() noexcept { return loop_; }

  // ANY THREAD. False: the loop's queue is full, and the task was dropped (and logged).
  bool post(std::function<void(Lane&)> task);
  void start();
  void stop();  // from another thread; returns when the thread has ended

  // An empty call: the caller fills it in and submits it.
  Call* make_call();
  void submit(Call* call);
  // Both keep when the call was issued, and its deadline.
  void submit_again(Call* call);
  void submit_later(Call* call, Clock::duration rest);

  void node_put(uint32_t node);
  void target_put(uint32_t target, uint32_t node);
  std::optional<uint32_t> node_of(uint32_t target) const;
  void connection_put(uint32_t node, net::Socket socket, std::shared_ptr<rdma::Channel> channel);
  void connection_failed(uint32_t node);
  void ask_for_connection(uint32_t node);
  // How near the server of a target is: whether it answers, whether it is on this host, and how
  // many answers it owes this lane.
  struct Nearness {
    bool is_stuck = false;
    bool is_local = false;
    size_t owed = 0;
  };
  Nearness nearness(uint32_t target) const noexcept;
  void is_near(uint32_t node);  // a link says that the node is on this host
  // By the cluster map: the silence of a node with a target that is down is not borne for long.
  void target_state(uint32_t target, bool is_up);

  // A link says that a reply with this status has come, or that the call is over.
  void answered(Call* call, Status status);
  void finished(Call* call);
  void unreachable(Call* call);  // a call that is tried once could not be sent
  // The server of a bound call is not there, since then.
  static void note_missing(Call& call, Clock::time_point since) noexcept;
  // A bound call has waited for too long: the replicas of its file at this target are to be
  // dropped. True: the file has none there any more, so the call ends. Else it goes on: the target
  // may answer before the metaserver does.
  bool gives_up(Call& call);
  Clock::time_point deadline_after(Clock::time_point now) const noexcept;
  // Has Python open the file of the call again: its view may be out of date.
  void ask_for_view(const Call& call);
  void abort_calls();

  // The lane looks at the inode's partial pieces again when they have aged.
  void watch_age(std::shared_ptr<Inode> inode);
  // Syncs the inode after a while, if nobody else has (Inode::sync_watched is set).
  void sync_later(std::shared_ptr<Inode> inode, uint32_t times = 1);
  void background_synced();
  // A link says that it lets writes gather. Whoever waits for pieces calls hurry() on all lanes.
  void gathers() noexcept { gathers_.store(true, std::memory_order_relaxed); }
  void hurry();                // ANY THREAD
  void send_partial_pieces();  // of all watched inodes, whatever their age
  // An operation waits for buffer memory: it proceeds after room(), or at the next tick.
  void when_room(std::shared_ptr<Operation> operation);
  // The memory into which the payload of the next WRITE is read. Empty: there is none.
  std::span<std::byte> receive_buffer();
  bool is_received(std::span<const std::byte> payload) const noexcept {
    return receive_buffer_ && payload.data() == receive_buffer_.span().data();
  }
  void keep_received(Buffer& buffer) noexcept {
    receive_buffer_.trade(buffer);
  }  // which is of the same size
  void room() {
    if (!starved_.empty()) wake_starved();
  }
  Recycled<ReadOperation>& reads() noexcept { return reads_; }
  Recycled<EarlyFetch>& early_fetches() noexcept { return early_fetches_; }
  Recycled<OpenedFetch>& opened_fetches() noexcept { return opened_fetches_; }
  LaneCounters& counters() noexcept { return counters_; }
  size_t calls_in_work() const noexcept { return calls_.size() - idle_calls_.size(); }
  void log(LogLevel level, std::string text);

 private:
  struct Resting {
    Clock::time_point until;
    Call* call;
  };

  void log_loss(const Call& call);
  void bind(Call& call);
  void unbind(Call& call);
  bool drops_object(Call& call);
  void look_at_resting(Clock::time_point now);
  void route(Call* call);
  void rest(Call* call, bool is_missing);
  void resend(Call* call);
  void arm_tick();
  void tick();
  void excuse(Clock::duration late);
  void wake_starved();
  void sync_due();
  void wake_resting(Clock::time_point now);

  Context& context_;
  const uint32_t index_;
  const LaneDuties duties_;
  net::EventLoop loop_;
  std::thread thread_;
  std::unordered_map<uint32_t, uint32_t> node_of_target_;
  std::unordered_map<uint32_t, std::unique_ptr<Link>> links_;  // only *_put() adds to it
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Call*> idle_calls_;
  std::vector<Resting> resting_;
  std::unordered_set<uint32_t> down_;  // targets, by the cluster map
  std::vector<std::shared_ptr<Inode>> ageing_;
  std::deque<std::shared_ptr<Operation>> starved_;
  std::deque<std::shared_ptr<Inode>> sync_due_;  // waiting for their turn in the background
  size_t syncing_ = 0;                           // in the background
  Recycled<ReadOperation> reads_;
  Recycled<EarlyFetch> early_fetches_;
  Recycled<OpenedFetch> opened_fetches_;
  LaneCounters counters_;
  Buffer receive_buffer_;
  bool ticking_ = false;
  Clock::time_point tick_due_{};
  std::atomic<bool> gathers_ = false;
};

}  // namespace braidfs::client
