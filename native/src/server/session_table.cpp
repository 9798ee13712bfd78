#include "server/session_table.h"

#include <utility>

#include "core/clock.h"

namespace braidfs::server {

using Life = SessionState::Life;

std::vector<uint64_t> SessionTable::replace(std::span<const uint64_t> live) {
  std::vector<uint64_t> gone;
  const std::scoped_lock lock(mu_);
  live_.clear();
  for (const uint64_t session : live) {
    if (!fenced_.contains(session)) live_.insert(session);
  }
  for (const auto& [session, state] : states_) {
    if (state->life() == Life::kFenced) continue;
    const bool lives = live_.contains(session);
    if (!lives && state->life() == Life::kLive) gone.push_back(session);
    state->life_.store(lives ? Life::kLive : Life::kUnknown, std::memory_order_release);
  }
  ready_.store(true, std::memory_order_release);
  return gone;
}

bool SessionTable::is_leased() const {
  return Clock::since_boot_ns() < until_ns_.load(std::memory_order_acquire);
}

void SessionTable::fence(uint64_t session) {
  const std::scoped_lock lock(mu_);
  live_.erase(session);
  if (fenced_.insert(session).second) fenced_order_.push_back(session);
  if (fenced_order_.size() > kFencedMax) {
    fenced_.erase(fenced_order_.front());
    fenced_order_.pop_front();
  }
  if (const auto found = states_.find(session); found != states_.end()) {
    found->second->life_.store(Life::kFenced, std::memory_order_release);
  }
}

bool SessionTable::when_ended(uint64_t session, std::function<void()> ended) {
  {
    const std::scoped_lock lock(mu_);
    const auto found = states_.find(session);
    if (found != states_.end() && found->second->connections_ > 0) {
      auto& waiting = found->second->waiting_;
      if (waiting.size() >= kWaitersMax) return false;
      waiting.push_back(std::move(ended));
      return true;
    }
  }
  ended();
  return true;
}

void SessionTable::forget_waiting() {
  std::vector<std::function<void()>> dropped;
  const std::scoped_lock lock(mu_);
  for (const auto& [session, state] : states_) {
    for (auto& call : state->waiting_) dropped.push_back(std::move(call));
    state->waiting_.clear();
  }
}

std::shared_ptr<SessionState> SessionTable::connection_added(uint64_t session) {
  const std::scoped_lock lock(mu_);
  auto& state = states_[session];
  if (!state) {
    state = std::make_shared<SessionState>();
    const Life life = fenced_.contains(session) ? Life::kFenced
                      : live_.contains(session) ? Life::kLive
                                                : Life::kUnknown;
    state->life_.store(life, std::memory_order_release);
  }
  ++state->connections_;
  return state;
}

size_t SessionTable::connection_count(uint64_t session) const {
  const std::scoped_lock lock(mu_);
  const auto found = states_.find(session);
  return found == states_.end() ? 0 : found->second->connections_;
}

void SessionTable::connection_ended(uint64_t session) {
  std::vector<std::function<void()>> ended;
  {
    const std::scoped_lock lock(mu_);
    const auto found = states_.find(session);
    if (found == states_.end() || --found->second->connections_ > 0) return;
    ended = std::move(found->second->waiting_);
    states_.erase(found);
  }
  for (const auto& call : ended) call();
}

size_t SessionTable::live_count() const {
  const std::scoped_lock lock(mu_);
  return live_.size();
}

}  // namespace braidfs::server
