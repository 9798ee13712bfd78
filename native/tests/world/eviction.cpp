// The metaserver of a world: sessions that are silent, and what they leave.
#include <algorithm>

#include "braidfs/leases.h"
#include "metaserver.h"

namespace braidfs::world {

namespace {

constexpr Duration kFencePatience = seconds(6);
constexpr Duration kAgain = milliseconds(500);
constexpr Duration kSyncPatience = seconds(4);

}  // namespace

void Metaserver::evict(uint64_t session) {
  clockwork_.trace.note("session %llx is evicted", static_cast<unsigned long long>(session));
  sessions_[session] = Session::kEvicting;
  watcher->is_evicted(session);
  for (const auto& [ino, waiting] : wanting_) serve(ino);
  for (const auto& [ino, writer] : std::set(writing_)) {
    if (writer != session) continue;
    const bool is_alone = std::none_of(
        writing_.begin(), writing_.end(),
        [&, of = ino](const auto& other) { return other.first == of && other.second != session; });
    FileRecord& file = files_.at(ino);
    if (is_alone && !cuts_.contains(ino)) {
      begin_cut(ino, file.size);
    } else {
      ++file.version;
    }
  }
  auto fenced = std::make_shared<Fenced>();
  fenced->session = session;
  if (mutant_ == Mutant::kNoFence) {
    for (const auto& host : hosts_) fenced->hosts.insert(host->number());
    return make_whole(fenced);
  }
  fenced->left = hosts_.size();
  for (const auto& host : hosts_) fence(fenced, host->number());
}

// Until the server has no request of the session any more, or serves nobody.
void Metaserver::fence(const std::shared_ptr<Fenced>& fenced, uint32_t host) {
  const auto one_less = [=, this] {
    if (--fenced->left == 0) make_whole(fenced);
  };
  if (VirtualTime::now() > known_hosts_[host].lease_ends) return one_less();
  Frame frame = frame_of(Op::kFence, {}, 0);
  frame.header.offset = fenced->session;
  calls_.call_host(host, frame, kFencePatience, [=, this](const Answer& answer) {
    if (answer.is_ok() || answer.kind == Answer::Kind::kNobody) {
      fenced->hosts.insert(host);
      return one_less();
    }
    clockwork_.agenda.after(kAgain, [=, this] { fence(fenced, host); });
  });
}

// Keeps one replica of what the session alone has written: it may have written to some only.
void Metaserver::make_whole(const std::shared_ptr<Fenced>& fenced) {
  std::vector<Name> gone;
  bool is_whole = true;
  for (const auto& [ino, file] : files_) {
    const bool is_meant = file.is_replicated && writing_.contains({ino, fenced->session}) &&
                          holds(fenced->session, ino, kLeaseDataExclusive);
    if (!is_meant || mutant_ == Mutant::kNotMadeWhole) continue;
    is_whole = keep_one(ino, fenced->hosts) && is_whole;
    for (const Name& name : dropped_) {
      if (name.file_id == file.file_id) gone.push_back(name);
    }
  }
  settle(gone, [=, this] {
    if (is_whole) return forget(fenced->session);
    clockwork_.agenda.after(kAgain, [=, this] {
      fenced->left = 1;
      for (const auto& host : hosts_) {  // one that is back was told who lives
        const bool is_back =
            VirtualTime::now() <= known_hosts_[host->number()].lease_ends && host->is_up();
        if (fenced->hosts.contains(host->number()) || !is_back) continue;
        ++fenced->left;
        fence(fenced, host->number());
      }
      if (--fenced->left == 0) make_whole(fenced);
    });
  });
}

bool Metaserver::keep_one(uint64_t ino, const std::set<uint32_t>& hosts) {
  const FileRecord& file = files_.at(ino);
  bool is_whole = true;
  std::vector<Name> gone;
  for (uint32_t stripe = 0; stripe < file.width; ++stripe) {
    const auto names = file.names_of(stripe);
    if (names.size() < 2) continue;
    const auto kept = std::find_if(names.begin(), names.end(), [&](const Name& name) {
      return hosts.contains(calls_.host_of(name.target)) && is_up(name.target);
    });
    is_whole = is_whole && kept != names.end();
    if (kept == names.end()) continue;
    std::copy_if(names.begin(), names.end(), std::back_inserter(gone),
                 [&](const Name& name) { return name != *kept; });
  }
  remove(ino, gone);
  return is_whole;
}

void Metaserver::forget(uint64_t session) {
  for (const auto& key : std::set(writing_)) {
    if (key.second != session) continue;
    writing_.erase(key);
    if (files_.at(key.first).is_replicated) unsynced_.emplace(key, 0);
  }
  sessions_[session] = Session::kEnded;
  clockwork_.trace.note("session %llx has ended", static_cast<unsigned long long>(session));
  watcher->was_evicted(session);
  for (auto& [ino, holders] : leases_) {
    const auto held = holders.find(session);
    if (held == holders.end()) continue;
    const bool was_exclusive = (held->second.flags & kLeaseDataExclusive) != 0;
    holders.erase(held);
    if (was_exclusive) watcher->freed(ino);
    serve(ino);
  }
}

// ---- what goes on beside ----

// Ends U of sessions that are no more.
void Metaserver::sync_closed() {
  for (const auto& [key, serial] : unsynced_) {
    const uint64_t ino = key.first;
    if (sessions_[key.second] != Session::kEnded || cuts_.contains(ino) || syncing_.contains(ino))
      continue;
    syncing_.insert(ino);
    const FileRecord& file = files_.at(ino);
    const auto names = file.names();
    auto left = std::make_shared<size_t>(names.size());
    auto is_durable = std::make_shared<bool>(true);
    for (const Name& name : names) {
      const Frame frame = frame_of(Op::kSync, name.object(), name.target, file.epoch);
      calls_.call(name.target, frame, kSyncPatience,
                  [=, this, key = key, serial = serial, epoch = file.epoch](const Answer& answer) {
                    const bool is_absent = answer.is(Status::kNoObject);
                    const bool is_synced =
                        answer.is_ok() && answer.incarnation() == incarnation(name.target);
                    *is_durable = *is_durable && (is_absent || is_synced);
                    if (--*left > 0) return;
                    syncing_.erase(ino);
                    const FileRecord& now = files_.at(ino);
                    const auto found = unsynced_.find(key);
                    if (*is_durable && found != unsynced_.end() && found->second == serial &&
                        now.names() == names && now.epoch == epoch)
                      unsynced_.erase(found);
                  });
    }
  }
}

void Metaserver::clean_up() {
  for (const Name& name : doomed_) {
    const Frame frame = frame_of(Op::kDelete, name.object(), name.target);
    calls_.call(name.target, frame, kSyncPatience, [this, name](const Answer& answer) {
      if (!answer.is_ok() || doomed_.erase(name) == 0) return;
      watcher->deleted(name);
    });
  }
}

// Some replicas may refuse the present epoch already: writers go on with the next one.
void Metaserver::give_up_plan(uint64_t ino) {
  const auto found = planned_.extract(ino);
  if (found.empty()) return;
  const Planned& plan = found.mapped();
  doomed_.insert(plan.names.begin(), plan.names.end());
  FileRecord& file = files_.at(ino);
  if (file.file_id == plan.file_id && file.epoch < plan.epoch) file.epoch = plan.epoch;
}

}  // namespace braidfs::world
