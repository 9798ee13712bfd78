#include "client/lane.h"

#include <pthread.h>

#include <algorithm>

#include "client/context.h"
#include "client/inode.h"
#include "client/outcomes.h"

namespace braidfs::client {

namespace {

using std::chrono::milliseconds;

constexpr auto kTick = milliseconds(25);
constexpr auto kLate =
    milliseconds(1000);  // a tick that is so late shows that the thread did not run
constexpr auto kRestMin = milliseconds(10);
constexpr auto kRestMax = milliseconds(1000);
constexpr auto kLookEvery = milliseconds(100);
constexpr int64_t kReopenEvery_ms = 1000;
constexpr size_t kPolledCallsMax = 4;  // with more calls, answers come often enough without polling
constexpr size_t kBackgroundSyncsMax = 16;  // of one lane at once, so that other calls get through

// The object of the call is not one of the file's any more, or no replica of it is there.
bool is_elsewhere(const Call& call, const FileView& view) {
  return view.file_id != call.view->file_id || !view.has(call.stripe_index, call.replica);
}

int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count();
}

// Makes Python open the inode again, for a newer view and capability: a server refused this one.
void ask_to_reopen(Inode& inode, EventQueue& events) {
  const int64_t now = now_ms();
  int64_t last = inode.reopen_asked_ms;
  if (now - last < kReopenEvery_ms || !inode.reopen_asked_ms.compare_exchange_strong(last, now)) {
    return;
  }
  const bool writable = inode.reopen_writable.exchange(false);
  events.put({.kind = EventKind::kReopen, .ino = inode.ino(), .a = writable ? 1 : 0});
}

}  // namespace

Lane::Lane(Context& context, uint32_t index, const LaneDuties& duties)
    : context_(context), index_(index), duties_(duties) {
  loop_.busy_poll(std::chrono::microseconds(context.settings().busy_poll_us),
                  [this] { return calls_in_work() <= kPolledCallsMax; });
}

Lane::~Lane() { stop(); }

bool Lane::post(std::function<void(Lane&)> task) {
  if (loop_.post([this, task = std::move(task)] { task(*this); })) return true;
  log(LogLevel::kError, "lane " + std::to_string(index_) + " is flooded: a task was dropped");
  return false;
}

std::span<std::byte> Lane::receive_buffer() {
  if (!receive_buffer_) receive_buffer_ = context_.memory().receive_buffer();
  return receive_buffer_.span();
}

void Lane::start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), ("braid-lane-" + std::to_string(index_)).c_str());
    loop_.run();
  });
}

void Lane::stop() {
  if (!thread_.joinable()) return;
  loop_.stop();
  thread_.join();
}

Call* Lane::make_call() {
  if (idle_calls_.empty()) {
    calls_.push_back(std::make_unique<Call>());
    idle_calls_.reserve(calls_.size());
    return calls_.back().get();
  }
  Call* call = idle_calls_.back();
  idle_calls_.pop_back();
  return call;
}

void Lane::submit(Call* call) {
  call->issued = loop_.now();
  call->deadline = deadline_after(call->issued);
  if (call->view->is_mirrored(call->stripe_index)) bind(*call);
  route(call);
  arm_tick();
}

void Lane::submit_again(Call* call) {
  route(call);
  arm_tick();
}

void Lane::submit_later(Call* call, Clock::duration rest) {
  resting_.push_back({loop_.now() + rest, call});
  arm_tick();
}

Clock::time_point Lane::deadline_after(Clock::time_point now) const noexcept {
  const uint32_t timeout_ms = context_.settings().timeout_ms;
  return timeout_ms == 0 ? Clock::time_point::max() : now + milliseconds(timeout_ms);
}

void Lane::route(Call* call) {
  const auto node = node_of_target_.find(call->replica.target);
  if (node == node_of_target_.end()) return rest(call, true);
  links_.find(node->second)->second->submit(call);  // target_put() has made it
}

void Lane::node_put(uint32_t node) {
  auto& link = links_[node];
  if (!link) link = std::make_unique<Link>(*this, node);
}

void Lane::target_put(uint32_t target, uint32_t node) {
  node_put(node);
  node_of_target_[target] = node;
  if (links_[node]->is_local()) is_near(node);
}

// The cluster map may be wrong: a target that it calls down still gets requests, and what waits for
// the target goes on waiting.
void Lane::target_state(uint32_t target, bool is_up) {
  const auto node = node_of_target_.find(target);
  if (node == node_of_target_.end()) return;
  Link& link = *links_.find(node->second)->second;
  if (!is_up) {
    down_.insert(target);
    return link.suspect(true);
  }
  down_.erase(target);
  const bool any_down =
      std::ranges::any_of(down_, [&](uint32_t one) { return node_of(one) == node->second; });
  link.suspect(any_down);
  for (Resting& resting : resting_) {
    if (resting.call->replica.target == target) resting.until = {};
  }
}

std::optional<uint32_t> Lane::node_of(uint32_t target) const {
  const auto node = node_of_target_.find(target);
  return node == node_of_target_.end() ? std::nullopt : std::optional(node->second);
}

Lane::Nearness Lane::nearness(uint32_t target) const noexcept {
  const auto node = node_of_target_.find(target);
  if (node == node_of_target_.end()) return {};
  const Link& link = *links_.find(node->second)->second;
  return {link.is_stuck(), link.is_local(), link.in_flight() + link.waiting()};
}

void Lane::is_near(uint32_t node) {
  for (const auto& [target, its_node] : node_of_target_) {
    if (its_node == node) context_.prefetcher().server_caches().is_near(target);
  }
}

void Lane::connection_put(uint32_t node, net::Socket socket,
                          std::shared_ptr<rdma::Channel> channel) {
  node_put(node);
  links_[node]->adopt(std::move(socket), std::move(channel));
}

void Lane::connection_failed(uint32_t node) {
  node_put(node);
  links_[node]->connect_failed();
  arm_tick();
}

void Lane::ask_for_connection(uint32_t node) {
  context_.events().put({.kind = EventKind::kConnect, .a = node, .b = index_});
}

void Lane::answered(Call* call, Status status) {
  if (call->incarnation != 0) {
    context_.incarnations().seen(call->replica.target, call->incarnation, [&] {
      duties_.resend_lost(*this, call->replica.target, call->incarnation);
    });
  }
  if (call->failed_early) return finished(call);
  call->status = call->refusal = status;
  if (call->is_bound &&
      fails_replica(call->op, status, must_exist(*call->view, call->stripe_index)) &&
      drops_object(*call)) {
    return rest(call, false);
  }
  if (status == Status::kNoObject && changes(call->op) &&
      must_exist(*call->view, call->stripe_index)) {
    // The file has other objects now: the former ones were removed with their bytes.
    if (is_elsewhere(*call, *call->inode->view())) {
      call->status = Status::kStaleTruncateEpoch;
      return finished(call);
    }
    log_loss(*call);
  }
  switch (outcome_of(call->op, status)) {
    case Outcome::kTell:
      return finished(call);
    case Outcome::kFail:
      call->status = Status::kEio;
      return finished(call);
    case Outcome::kRenew:
      ask_for_view(*call);
      break;
    case Outcome::kAgain:
      break;
  }
  if (call->once) return finished(call);
  ++counters_.retries;
  rest(call, status == Status::kNotReady || status == Status::kUnknownSession ||
                 status == Status::kNoTarget);
}

// ---- replicas ----

void Lane::bind(Call& call) {
  call.is_bound = (changes(call.op) || call.op == Op::kSync) && !call.once;
  if (call.is_bound) call.deadline = Clock::time_point::max();
}

// It is the only replica by now.
void Lane::unbind(Call& call) {
  call.is_bound = false;
  call.deadline = deadline_after(loop_.now());
}

void Lane::note_missing(Call& call, Clock::time_point since) noexcept {
  call.missing_since = std::min(call.missing_since, since);
}

bool Lane::gives_up(Call& call) {
  call.look_at = loop_.now() + kLookEvery;
  std::optional<Event> event;
  {
    const std::scoped_lock lock(call.inode->mu());
    const FileView& view = *call.inode->view_locked();
    if (is_elsewhere(call, view)) return true;
    if (!view.is_mirrored(call.stripe_index)) {
      unbind(call);
    } else {
      event = call.inode->drop_replicas(call.replica.target, std::nullopt, loop_.now());
    }
  }
  if (event) context_.events().put(std::move(*event));
  return false;
}

// The target has failed this object. True: the call goes on until the file has another view.
bool Lane::drops_object(Call& call) {
  std::optional<Event> event;
  {
    const std::scoped_lock lock(call.inode->mu());
    const FileView& view = *call.inode->view_locked();
    if (is_elsewhere(call, view)) return true;
    if (!view.is_mirrored(call.stripe_index)) return false;
    event = call.inode->drop_replicas(call.replica.target, call.replica.object_number, loop_.now());
  }
  if (event) context_.events().put(std::move(*event));
  return true;
}

void Lane::look_at_resting(Clock::time_point now) {
  const milliseconds unreached{context_.settings().unreached_ms_max};
  const milliseconds unanswered{context_.settings().unanswered_ms_max};
  for (Resting& resting : resting_) {
    Call& call = *resting.call;
    if (!call.is_bound || now < call.look_at) continue;
    if (now - call.missing_since < unreached && now - call.issued < unanswered) continue;
    if (gives_up(call)) resting.until = {};
  }
}

void Lane::log_loss(const Call& call) {
  if (call.op == Op::kCopy) return;  // the lost object may be the source
  if (call.inode->loss_logged.exchange(true)) return;
  context_.events().log(
      LogLevel::kError, call.inode->ino(),
      "target " + std::to_string(call.replica.target) + " has lost what it held of stripe " +
          std::to_string(call.stripe_index) +
          " of this file, which was durable: reads and writes there are EIO (braidfs stat)");
}

void Lane::ask_for_view(const Call& call) {
  if (!call.inode) return;
  // The file may be open for reading alone by now, and what was written to it before is sent again.
  if (changes(call.op)) call.inode->reopen_writable = true;
  ask_to_reopen(*call.inode, context_.events());
  if (call.source)
    ask_to_reopen(*call.source, context_.events());  // the status does not say which of the two
}

void Lane::finished(Call* call) {
  const std::shared_ptr<CallOwner> owner = call->owner;
  owner->call_done(*this, *call);
  *call = Call{};
  idle_calls_.push_back(call);
}

void Lane::unreachable(Call* call) {
  call->status = Status::kEio;
  finished(call);
}

void Lane::rest(Call* call, bool is_missing) {
  if (call->once) return unreachable(call);
  const auto now = loop_.now();
  if (is_missing) {
    note_missing(*call, now);
  } else {
    call->missing_since = Clock::time_point::max();
  }
  const auto pause =
      std::min<Clock::duration>(kRestMin * (1u << std::min(call->attempts, 10u)), kRestMax);
  ++call->attempts;
  resting_.push_back({now + pause, call});
  arm_tick();
}

// A call keeps its object for life and, if it changes the object, also its truncate epoch. Under a
// newer epoch it would bring back what was cut off meanwhile; its owner knows what is left of it.
// So does a SYNC of a replica: its owner asks those that are there by now.
void Lane::resend(Call* call) {
  FileViewPtr view = call->inode->view();
  if (changes(call->op) && view->session() != call->view->session()) {
    call->status = Status::kFenced;  // evicted meanwhile: former writes may not be stored now
    return finished(call);
  }
  const bool keeps_epoch = changes(call->op) || (call->op == Op::kSync && view->is_replicated);
  if (is_elsewhere(*call, *view) ||
      (keeps_epoch && view->truncate_epoch != call->view->truncate_epoch)) {
    call->status = Status::kStaleTruncateEpoch;
    return finished(call);
  }
  if (call->is_bound && !view->is_mirrored(call->stripe_index)) unbind(*call);
  call->see(std::move(view));
  route(call);
}

void Lane::wake_resting(Clock::time_point now) {
  std::vector<Call*> due;
  std::erase_if(resting_, [&](const Resting& resting) {
    if (now < resting.until && now < resting.call->deadline) return false;
    due.push_back(resting.call);
    return true;
  });
  for (Call* call : due) {
    if (now < call->deadline) {
      resend(call);
    } else {
      call->status = Status::kEio;
      finished(call);
    }
  }
}

void Lane::arm_tick() {
  if (ticking_) return;
  ticking_ = true;
  tick_due_ = Clock::now() + kTick;
  loop_.call_at(tick_due_, [this] { tick(); });
}

// While this thread did not run (the process was stopped, or the machine was overloaded), it could
// take no answers. So that time is added to every deadline.
void Lane::excuse(Clock::duration late) {
  for (const auto& call : calls_) {
    if (call->deadline != Clock::time_point::max()) call->deadline += late;
    if (call->missing_since != Clock::time_point::max()) call->missing_since += late;
    call->sent += late;
  }
  for (auto& [node, link] : links_) link->excuse(late);
  context_.missing_servers().excuse(late, loop_.now());
}

void Lane::tick() {
  ticking_ = false;
  const auto now = loop_.now();
  if (now - tick_due_ > kLate) excuse(now - tick_due_);
  look_at_resting(now);
  wake_resting(now);
  for (auto& [node, link] : links_) link->tick(now);
  std::vector<std::shared_ptr<Inode>> ageing;
  ageing.swap(ageing_);
  for (auto& inode : ageing) {
    if (!duties_.send_aged(*this, inode, now)) ageing_.push_back(std::move(inode));
  }
  room();
  if (calls_in_work() > 0 || !ageing_.empty() || !starved_.empty()) arm_tick();
}

void Lane::abort_calls() {
  std::vector<Resting> resting;
  resting.swap(resting_);
  for (const Resting& entry : resting) {
    entry.call->status = Status::kAborted;
    finished(entry.call);
  }
  for (auto& [node, link] : links_) link->fail_all(Status::kAborted);
}

void Lane::watch_age(std::shared_ptr<Inode> inode) {
  ageing_.push_back(std::move(inode));
  arm_tick();
}

void Lane::sync_later(std::shared_ptr<Inode> inode, uint32_t times) {
  loop_.call_at(loop_.now() + milliseconds(context_.settings().sync_after_ms) * times,
                [this, inode = std::move(inode)]() mutable {
                  sync_due_.push_back(std::move(inode));
                  sync_due();
                });
}

void Lane::sync_due() {
  while (syncing_ < kBackgroundSyncsMax && !sync_due_.empty()) {
    ++syncing_;
    const std::shared_ptr<Inode> inode = std::move(sync_due_.front());
    sync_due_.pop_front();
    duties_.sync(*this, inode);
  }
}

void Lane::background_synced() {
  --syncing_;
  loop_.defer([this] { sync_due(); });
}

void Lane::hurry() {
  if (!gathers_.load(std::memory_order_relaxed) || !gathers_.exchange(false)) return;
  post([](Lane& lane) {
    for (auto& [node, link] : lane.links_) link->hurry();
  });
}

void Lane::send_partial_pieces() {
  std::vector<std::shared_ptr<Inode>> inodes = ageing_;
  for (const auto& inode : inodes) duties_.send_partial(*this, inode);
}

void Lane::when_room(std::shared_ptr<Operation> operation) {
  starved_.push_back(std::move(operation));
  arm_tick();
}

void Lane::wake_starved() {
  std::deque<std::shared_ptr<Operation>> starved;
  starved.swap(starved_);
  for (const auto& operation : starved) {
    loop_.defer([this, operation] { operation->proceed(*this); });
  }
}

void Lane::log(LogLevel level, std::string text) {
  context_.events().log(level, 0, std::move(text));
}

}  // namespace braidfs::client
