#include "rdma/channel.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace braidfs::rdma {

namespace {

constexpr uint32_t kSignalEvery = 16;  // at least one chain in so many asks for a completion

}  // namespace

Channel::Channel(Port& port, std::unique_ptr<QueuePair> pair, uint32_t credits_given)
    : port_(port),
      pair_(std::move(pair)),
      number_(pair_->local().queue_pair),
      credits_given_(credits_given) {}

// The queue pair is destroyed first: after that nothing touches the memory of the ring's entries.
Channel::~Channel() {
  pair_.reset();
  if (works_ > 0) port_.work_done(works_);
}

Peer Channel::local() const noexcept {
  Peer local = pair_->local();
  local.credits = credits_given_;
  local.slot_size = kSlotSize;
  return local;
}

int Channel::connect(const Peer& peer) {
  if (peer.magic != Peer::kMagic || peer.slot_size != kSlotSize || peer.credits < kCreditsMin ||
      peer.credits > 4096 || peer.mtu < 1 || peer.mtu > 5) {
    return -EPROTO;
  }
  peer_ = peer;
  return pair_->connect(peer);
}

void Channel::bind(ChannelUser& user) {
  user_ = &user;
  for (const auto& message : std::exchange(early_, {})) {
    if (user_ != nullptr) user_->message_arrived(message);
  }
  if (failed_ && user_ != nullptr) user_->channel_failed(failure_);
}

bool Channel::has_room(uint32_t works) const noexcept {
  return works_ + works <= Port::kChannelWorkMax && port_.work_fits(works);
}

bool Channel::post(std::span<Work> works, Posted posted) {
  const auto count = static_cast<uint32_t>(works.size());
  const bool scarce = port_.slots().free_count() < port_.slots().count() / 2;
  const bool signal = posted.must_signal || scarce || ++silent_ >= kSignalEvery;
  if (signal) silent_ = 0;
  for (Work& work : works) work.id = next_id_;
  works.back().signalled = signal;
  PortCounters& counters = port_.counters();
  counters.doorbells.fetch_add(1, std::memory_order_relaxed);
  if (signal) counters.signalled.fetch_add(1, std::memory_order_relaxed);
  ring_.push_back({next_id_++, count, std::move(posted)});
  works_ += count;
  port_.work_posted(count);
  const int error = failed_ ? -EIO : pair_->post(works);
  if (error == 0) return true;
  lost(std::string("cannot post work: ") + std::strerror(-error));
  return false;
}

void Channel::fail() noexcept {
  failed_ = true;
  pair_->fail();
}

void Channel::drain() noexcept {
  fail();
  if (ring_.empty()) return;
  const Work mark{.id = next_id_, .signalled = true};
  ring_.push_back({next_id_++, 1, {}});
  works_ += 1;
  port_.work_posted(1);
  (void)pair_->post(std::span(&mark, 1));  // when it is refused, the port's deadline ends the wait
}

void Channel::received(std::span<const std::byte> message) {
  if (user_ != nullptr) return user_->message_arrived(message);
  if (early_.size() >= credits_given_ || failed_) return;
  early_.emplace_back(message.begin(), message.end());
}

void Channel::completed(const Completion& completion) {
  if (completion.status != 0) failed(completion.status);
  while (!ring_.empty() && ring_.front().id <= completion.id) end_first(completion.status == 0);
}

void Channel::end_first(bool done) {
  const uint32_t works = ring_.front().works;
  Posted posted = std::move(ring_.front().posted);
  ring_.pop_front();
  works_ -= works;
  port_.work_done(works);
  if (done && posted.fetch != 0 && user_ != nullptr) {
    user_->fetch_done(posted.fetch, std::move(posted.memory));
  }
}

void Channel::failed(int status) { lost(port_.device().describe(status)); }

void Channel::lost(const std::string& reason) {
  if (std::exchange(failed_, true)) return;
  port_.counters().failures.fetch_add(1, std::memory_order_relaxed);
  failure_ = reason;
  pair_->fail();
  if (user_ != nullptr) user_->channel_failed(reason);
}

}  // namespace braidfs::rdma
