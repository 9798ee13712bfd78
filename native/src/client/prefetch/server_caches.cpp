#include "client/prefetch/server_caches.h"

#include <algorithm>
#include <cstring>

namespace braidfs::client::prefetch {

const Replica& ServerCaches::read_first_locked(uint64_t file_id,
                                               std::span<const Replica> replicas) const {
  for (size_t step = 0; step < replicas.size(); ++step) {
    const Replica& one = replicas[usual_place(file_id, replicas.size(), step)];
    if (near_.contains(one.target)) return one;
  }
  return replicas[usual_place(file_id, replicas.size())];
}

void ServerCaches::want(const Attributes& attributes, const FileView& view, Clock::time_point now) {
  const Span all = first_span(view, 0, attributes.size);
  const std::scoped_lock lock(mu_);
  const Replica& replica = read_first_locked(view.file_id, view.replicas(all.stripe_index));
  Waiting one{{{}, replica.object_number, all.length}, now};
  std::memcpy(&one.object.capability, view.capability.data(), sizeof(one.object.capability));
  Target& target = targets_[replica.target];
  if (waiting_ >= kWaitingMax || now < target.not_before) return;
  target.waiting.push_back(one);
  waiting_.fetch_add(1, std::memory_order_relaxed);
}

void ServerCaches::is_near(uint32_t target) {
  const std::scoped_lock lock(mu_);
  near_.insert(target);
}

std::vector<ServerCaches::Batch> ServerCaches::take(Clock::time_point now) {
  std::vector<Batch> taken;
  const std::scoped_lock lock(mu_);
  for (auto& [number, target] : targets_) {
    auto& waiting = target.waiting;
    const auto is_old = [&](const Waiting& one) { return now - one.since > kPatience; };
    const auto young = std::ranges::find_if_not(waiting, is_old);
    waiting_ -= static_cast<size_t>(young - waiting.begin());
    waiting.erase(waiting.begin(), young);
    if (waiting.empty() || target.is_under_way || now < target.not_before) continue;
    Batch batch{number, waiting.front().since};
    const auto end = waiting.begin() +
                     static_cast<ptrdiff_t>(std::min<size_t>(waiting.size(), limits::kFetchMax));
    std::ranges::transform(waiting.begin(), end, std::back_inserter(batch.objects),
                           &Waiting::object);
    waiting_ -= batch.objects.size();
    waiting.erase(waiting.begin(), end);
    target.is_under_way = true;
    taken.push_back(std::move(batch));
  }
  return taken;
}

void ServerCaches::refused_locked(Target& target, size_t count, Clock::time_point until) {
  refused_ += count + target.waiting.size();
  waiting_ -= target.waiting.size();
  target.waiting.clear();
  target.not_before = until;
}

std::optional<Clock::time_point> ServerCaches::ended(Batch batch, Outcome outcome,
                                                     Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  Target& target = targets_[batch.target];
  target.is_under_way = false;
  switch (outcome) {
    case Outcome::kTaken:
      wanted_ += batch.objects.size();
      break;
    case Outcome::kRefused:
      refused_locked(target, batch.objects.size(), now + kRest);
      break;
    case Outcome::kUnknown:
      refused_locked(target, batch.objects.size(), now + kUnknownRest);
      break;
    case Outcome::kUnreached:
      for (const FetchedObject& object : batch.objects)
        target.waiting.push_front({object, batch.since});
      waiting_ += batch.objects.size();
      target.not_before = now + kUnreachedRest;
      break;
  }
  if (target.waiting.empty()) return std::nullopt;
  return std::max(now, target.not_before);
}

void ServerCaches::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const {
  all.emplace_back("fetch_ahead_files", wanted_.load(std::memory_order_relaxed));
  all.emplace_back("fetch_ahead_refused", refused_.load(std::memory_order_relaxed));
}

}  // namespace braidfs::client::prefetch
