#include "rdma/port.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "rdma/channel.h"

namespace braidfs::rdma {

namespace {

constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr int kReapRounds = 16;  // then other connections of the lane get their turn
constexpr size_t kReapMany = 64;
constexpr std::chrono::milliseconds kRetireCheckEvery{10};

}  // namespace

class Port::Watch final : public net::Queue {
 public:
  explicit Watch(Port& port) : port_(port) {}
  bool take() override { return port_.take(); }
  bool arm() override { return port_.arm(); }

 private:
  Port& port_;
};

Port::Port(Device& device, const PortSettings& settings) : device_(device), settings_(settings) {}

Port::~Port() {
  if (*alive_) *alive_ = false;  // after detach() this may run on another thread
  for (auto& line : lines_) line.clear();
  retired_.clear();
  {
    const std::scoped_lock lock(mu_);
    channels_.clear();
  }
  received_into_.reset();
}

int Port::make() {
  if (const int error = device_.make_completion_queue(completions_max(), completions_);
      error != 0) {
    return error;
  }
  if (const int error = device_.make_receive_queue(settings_.receive_slots, receives_);
      error != 0) {
    return error;
  }
  if (const int error = make_memory(); error != 0) return error;
  const auto returned = [this] { schedule_wake(); };
  out_.on_return(returned);
  in_.on_return(returned);
  slots_.on_return(returned);
  received_into_ = receive_slots_.take(settings_.receive_slots);
  for (uint32_t slot = 0; slot < settings_.receive_slots; ++slot) {
    if (const int error = post_receive(slot); error != 0) return error;
  }
  return 0;
}

int Port::make_memory() {
  const bool exposed = !settings_.is_acceptor;
  int error = out_.make(device_, kBlockSize, settings_.out_blocks, exposed);
  if (error == 0 && settings_.in_blocks > 0) {
    error = in_.make(device_, kBlockSize, settings_.in_blocks, false);
  }
  if (error == 0) error = slots_.make(device_, kSlotSize, settings_.send_slots, false);
  if (error == 0) error = receive_slots_.make(device_, kSlotSize, settings_.receive_slots, false);
  return error;
}

int Port::post_receive(uint32_t slot) {
  const Receive receive{kReceiveBit | slot, receive_slots_.block(slot), receive_slots_.local_key()};
  return receives_->post(std::span(&receive, 1));
}

int Port::make_channel(std::shared_ptr<Channel>& made) {
  const std::scoped_lock lock(mu_);
  if (lost_) return -ENODEV;
  if (channels_.size() >= kChannelsMax) return -EMFILE;
  std::unique_ptr<QueuePair> pair;
  const QueuePairSpec spec{.completions = completions_.get(),
                           .receives = receives_.get(),
                           .work_max = kChannelWorkMax + 1,  // one more for the mark of drain()
                           .remote_access = !settings_.is_acceptor};
  if (const int error = device_.make_queue_pair(spec, pair); error != 0) return error;
  const auto share = kUnreadMax / static_cast<uint32_t>(channels_.size() + 1);
  const uint32_t credits = std::clamp(share, kCreditsMin, kCreditsMax);
  made = std::make_shared<Channel>(*this, std::move(pair), credits);
  channels_[made->number()] = made;
  return 0;
}

// Ends a channel without a stream. Its peer may have sent already: the lane receives that first.
void Port::drop(std::shared_ptr<Channel> channel) {
  net::EventLoop* const loop = attached();
  const auto end = [this, alive = alive_, channel] {
    if (*alive) retire(channel);
  };
  if (loop == nullptr || !loop->post(end)) forget(*channel);
}

void Port::forget(const Channel& channel) {
  const std::scoped_lock lock(mu_);
  channels_.erase(channel.number());
}

int Port::attach(net::EventLoop& loop) {
  if (loop_ != nullptr) return 0;
  const int error = loop.add(completions_->fd(), EPOLLIN, [this](uint32_t) { on_ready(); });
  if (error != 0) return error;
  {
    const std::scoped_lock lock(mu_);
    loop_ = &loop;
  }
  watch_ = std::make_shared<Watch>(*this);
  loop.watch(watch_);
  (void)take();  // what arrived before the loop listened
  return 0;
}

net::EventLoop* Port::attached() {
  const std::scoped_lock lock(mu_);
  return loop_;
}

bool Port::is_idle() {
  const std::scoped_lock lock(mu_);
  return channels_.empty();
}

void Port::detach() {
  if (loop_ != nullptr && !lost_) loop_->remove(completions_->fd());
  watch_.reset();
  *alive_ = false;
  lost_ = true;
}

std::shared_ptr<Channel> Port::find(uint32_t queue_pair) {
  const std::scoped_lock lock(mu_);
  const auto found = channels_.find(queue_pair);
  return found == channels_.end() ? nullptr : found->second;
}

void Port::on_ready() {
  armed_ = false;
  if (const int error = lost_ ? 0 : completions_->acknowledge(); error != 0)
    return device_lost(error);
  (void)take();
}

bool Port::take() {
  int count = 0;
  for (int round = 0; round < kReapRounds && reap_some(count); ++round) {
  }
  return count > 0;
}

// The queue is armed only when it is empty, and then polled once more: a completion after that
// makes the channel's fd readable.
bool Port::arm() {
  if (take()) return true;
  if (armed_ || lost_) return false;
  if (const int error = completions_->arm(); error != 0) {
    device_lost(error);
    return true;
  }
  armed_ = true;
  return take();
}

void Port::reap() {
  int count = 0;
  while (count < static_cast<int>(completions_max()) && reap_some(count)) {
  }
}

// Reaps one batch and adds its size to `count`. False: there is nothing more.
bool Port::reap_some(int& count) {
  std::array<Completion, kReapMany> done;
  const int found = lost_ ? 0 : completions_->poll(done);
  if (found < 0) {
    device_lost(found);
    return false;
  }
  count += found;
  for (int index = 0; index < found; ++index) dispatch(done[static_cast<size_t>(index)]);
  return found == static_cast<int>(done.size());
}

void Port::dispatch(const Completion& completion) {
  const auto channel = find(completion.queue_pair);
  if ((completion.id & kReceiveBit) != 0) {
    received(channel, completion);
  } else if (channel) {
    channel->completed(completion);
  }
}

// The slot is posted again at once, whatever the message was, so no slow peer holds a slot.
void Port::received(const std::shared_ptr<Channel>& channel, const Completion& completion) {
  const auto slot = static_cast<uint32_t>(completion.id & ~kReceiveBit);
  if (completion.status == 0 && channel) {
    counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
    const size_t length = std::min<size_t>(completion.length, kSlotSize);
    channel->received(receive_slots_.block(slot).first(length));
  } else if (completion.status != 0 && channel) {
    channel->failed(completion.status);
  }
  if (const int error = post_receive(slot); error != 0) device_lost(error);
}

void Port::retire(std::shared_ptr<Channel> channel) {
  if (loop_ == nullptr) return forget(*channel);
  channel->drain();
  retired_.push_back({std::move(channel), loop_->now() + kRetireMax});
  if (std::exchange(check_scheduled_, true)) return;
  loop_->call_at(loop_->now() + kRetireCheckEvery, [this, alive = alive_] {
    if (*alive) check_retired();
  });
}

void Port::check_retired() {
  check_scheduled_ = false;
  const auto now = loop_->now();
  std::vector<Retired> ended;
  std::erase_if(retired_, [&](Retired& retired) {
    if (!retired.channel->is_drained() && now < retired.until && !lost_) return false;
    ended.push_back(std::move(retired));
    return true;
  });
  // When a queue pair is destroyed, a shared receive queue loses the slots of its messages that
  // were not reaped. So they are reaped first.
  if (!ended.empty() && !lost_) reap();
  for (const auto& retired : ended) forget(*retired.channel);
  ended.clear();
  if (retired_.empty() || std::exchange(check_scheduled_, true)) return;
  loop_->call_at(now + kRetireCheckEvery, [this, alive = alive_] {
    if (*alive) check_retired();
  });
}

void Port::wait(Way way, const void* owner, std::function<void()> again) {
  auto& line = lines_[static_cast<size_t>(way)];
  const auto same = [&](const Waiter& waiter) { return waiter.owner == owner; };
  if (std::any_of(line.begin(), line.end(), same)) return;
  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  line.push_back({owner, std::move(again)});
}

void Port::stop_waiting(Way way, const void* owner) {
  std::erase_if(lines_[static_cast<size_t>(way)],
                [&](const Waiter& waiter) { return waiter.owner == owner; });
}

void Port::schedule_wake() {
  if (lines_[0].empty() && lines_[1].empty()) return;
  if (loop_ == nullptr || std::exchange(wake_scheduled_, true)) return;
  loop_->defer([this, alive = alive_] {
    if (*alive) wake_waiters();
  });
}

void Port::wake_waiters() {
  wake_scheduled_ = false;
  wake(Way::kOut);
  wake(Way::kIn);
}

// A waiter that got what it needs leaves the line during again(). The first one that still lacks
// something ends the round.
void Port::wake(Way way) {
  auto& line = lines_[static_cast<size_t>(way)];
  while (!line.empty()) {
    const void* owner = line.front().owner;
    const auto again = line.front().again;
    again();
    if (!line.empty() && line.front().owner == owner) return;
  }
}

void Port::device_lost(int error) {
  lose(std::string("the device is gone: ") + std::strerror(-error));
}

void Port::lose(const std::string& reason) {
  if (lost_.exchange(true)) return;
  if (loop_ != nullptr) loop_->remove(completions_->fd());
  watch_.reset();
  for (const auto& channel : all_channels()) channel->lost(reason);
}

std::vector<std::shared_ptr<Channel>> Port::all_channels() {
  const std::scoped_lock lock(mu_);
  std::vector<std::shared_ptr<Channel>> all;
  for (const auto& [number, channel] : channels_) all.push_back(channel);
  return all;
}

}  // namespace braidfs::rdma
