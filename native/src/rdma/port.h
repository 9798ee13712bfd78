// What the RDMA connections of one lane on one device share: a completion queue that the lane's
// event loop polls and is woken by, a receive queue with its message slots, and registered memory.
//
// Bounds: slots, blocks and work in flight are fixed when the port is made. A thousand connections
// share them; the more connections there are, the fewer unread messages each may have
// (make_channel()). A connection that finds too little waits in a line and is served in order. A
// channel whose stream is gone stays here, failed, until its work was flushed or kRetireMax has
// passed: only then are its memory and queue pair freed.
//
// Threads: LANE ONLY, except make_channel(), drop(), is_idle(), attached() and find(): ANY THREAD,
// guarded by mu_; is_lost() and the counters: ANY THREAD, atomic.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "net/event_loop.h"
#include "rdma/arena.h"
#include "rdma/message.h"
#include "rdma/verbs.h"

namespace braidfs::rdma {

class Channel;

struct PortSettings {
  // An acceptor moves the bytes; its memory is never exposed.
  bool is_acceptor = false;
  // Blocks for payloads that are sent; at an initiator also for places of replies.
  uint32_t out_blocks = 256;
  // Blocks for payloads that an acceptor fetches.
  uint32_t in_blocks = 0;
  uint32_t receive_slots = 512;
  uint32_t send_slots = 512;
};

struct PortCounters {
  std::atomic<uint64_t> messages_sent = 0, messages_received = 0;
  std::atomic<uint64_t> bytes_written = 0, bytes_fetched = 0, bytes_short = 0;
  std::atomic<uint64_t> signalled = 0, doorbells = 0, waits = 0, failures = 0;
};

class Port {
 public:
  static constexpr uint32_t kWorkMax = 4096;  // posted and not completed, over all channels
  // The same for one channel: the longest frame fits.
  static constexpr uint32_t kChannelWorkMax = 160;
  // Unread messages of all peers together. When there are more peers than that allows, each still
  // gets kCreditsMin.
  static constexpr uint32_t kUnreadMax = 4096;
  static constexpr size_t kChannelsMax = 4096;
  static constexpr std::chrono::milliseconds kRetireMax{2000};

  Port(Device& device, const PortSettings& settings);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  int make();  // called once, before anything else; 0 or -errno

  int make_channel(std::shared_ptr<Channel>& made);
  void drop(std::shared_ptr<Channel> channel);  // for a channel that never had a stream

  // The first call begins to listen; later calls do nothing.
  int attach(net::EventLoop& loop);
  void retire(std::shared_ptr<Channel> channel);
  // Handles all completions now, instead of when the loop gets to them.
  void reap();
  void lose(const std::string& reason);  // every channel fails, and no new one is made
  // Called before an idle port ends whose loop goes on.
  void detach();
  bool is_lost() const noexcept { return lost_; }
  // True when no channel is left; as long as no new one is made, it stays true.
  bool is_idle();
  net::EventLoop* attached();  // null: not attached yet
  std::shared_ptr<Channel> find(uint32_t queue_pair);

  Arena& out() noexcept { return out_; }
  Arena& in() noexcept { return in_; }
  Arena& slots() noexcept { return slots_; }
  bool is_acceptor() const noexcept { return settings_.is_acceptor; }
  Device& device() noexcept { return device_; }
  net::EventLoop& loop() noexcept { return *loop_; }
  PortCounters& counters() noexcept { return counters_; }
  bool work_fits(uint32_t count) const noexcept { return work_ + count <= kWorkMax; }
  void work_posted(uint32_t count) noexcept { work_ += count; }
  void work_done(uint32_t count) noexcept {
    work_ -= count;
    schedule_wake();
  }

  // Fair waiting: `owner` may take shared resources when no other owner waits before it. There is a
  // queue for each direction, so that outgoing work never waits behind incoming work: fetched
  // payloads may have to wait for memory that replies hold.
  enum class Way : uint8_t { kOut, kIn };
  bool may_take(Way way, const void* owner) const noexcept {
    const auto& line = lines_[static_cast<size_t>(way)];
    return line.empty() || line.front().owner == owner;
  }
  void wait(Way way, const void* owner, std::function<void()> again);
  void stop_waiting(Way way, const void* owner);

 private:
  struct Waiter {
    const void* owner;
    std::function<void()> again;
  };

  class Watch;  // the completion queue as the event loop sees it

  int make_memory();
  int post_receive(uint32_t slot);
  void on_ready();
  bool take();
  bool arm();
  bool reap_some(int& count);
  uint32_t completions_max() const noexcept { return kWorkMax + settings_.receive_slots + 64; }
  void forget(const Channel& channel);
  void dispatch(const Completion& completion);
  void received(const std::shared_ptr<Channel>& channel, const Completion& completion);
  void schedule_wake();
  void wake_waiters();
  void wake(Way way);
  void check_retired();
  void device_lost(int error);
  std::vector<std::shared_ptr<Channel>> all_channels();

  Device& device_;
  const PortSettings settings_;
  Arena out_, in_, slots_, receive_slots_;
  Blocks received_into_;  // all of receive_slots_, lent to the receive queue
  std::unique_ptr<CompletionQueue> completions_;
  std::unique_ptr<ReceiveQueue> receives_;
  net::EventLoop* loop_ = nullptr;  // written by the lane, under mu_
  uint32_t work_ = 0;
  bool armed_ = false;
  bool wake_scheduled_ = false;
  bool check_scheduled_ = false;
  std::atomic<bool> lost_ = false;
  std::array<std::deque<Waiter>, 2> lines_;  // indexed by Way
  struct Retired {
    std::shared_ptr<Channel> channel;
    net::Clock::time_point until;
  };
  std::vector<Retired> retired_;
  PortCounters counters_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Watch> watch_;  // exists while the loop polls

  std::mutex mu_;
  std::unordered_map<uint32_t, std::shared_ptr<Channel>> channels_;  // guarded by mu_
};

}  // namespace braidfs::rdma
