#include "metaserver.h"

#include <algorithm>

#include "braidfs/commit_flags.h"
#include "braidfs/leases.h"

namespace braidfs::world {

namespace {

constexpr Duration kSilent = seconds(8);  // a session that is silent for longer is evicted
constexpr Duration kRecallAgain = milliseconds(500);
constexpr Duration kLook = milliseconds(500);
constexpr uint32_t kBoth = kLeaseData | kLeaseDataExclusive;

}  // namespace

Metaserver::Metaserver(Clockwork& clockwork, Network& network,
                       std::vector<std::unique_ptr<StorageHost>>& hosts, const KeyBytes& key,
                       Mutant mutant, Tampering* tampering)
    : clockwork_(clockwork),
      hosts_(hosts),
      key_(key),
      mutant_(mutant),
      calls_("meta", clockwork, network, hosts, tampering),
      known_hosts_(hosts.size()) {
  for (Host& host : known_hosts_) host.lease_ends = VirtualTime::now() + seconds(10);
}

void Metaserver::start() {
  every(kLook, [this] { watch_sessions(); });
  every(seconds(2), [this] { sync_closed(); });
  every(seconds(2), [this] { clean_up(); });
}

void Metaserver::every(Duration rest, const std::function<void()>& what) {
  clockwork_.agenda.after(rest, [this, rest, what] {
    what();
    every(rest, what);
  });
}

// ---- files ----

FileRecord& Metaserver::create(uint64_t ino, uint32_t width, uint32_t replicas,
                               uint32_t chunk_size) {
  FileRecord& file = files_[ino];
  file.ino = ino;
  file.chunk_size = chunk_size;
  file.width = width;
  file.wanted = replicas;
  file.is_replicated = replicas > 1;
  replace(file);
  return file;
}

// The file has new objects, and nothing in them.
void Metaserver::replace(FileRecord& file) {
  for (const Name& name : file.names()) doomed_.insert(name);
  for (const Name& name : dropped_) {
    if (name.file_id == file.file_id) doomed_.insert(name);
  }
  file.file_id = ++last_number_;
  file.durable_stripes = 0;
  file.generation_last = 0;
  file.epoch = 0;
  file.stripes.assign(file.width, {});
  for (uint32_t stripe = 0; stripe < file.width; ++stripe) {
    for (const uint32_t target : place(file.wanted, {}))
      file.stripes[stripe].push_back({target, 0});
    while (file.is_replicated && file.stripes[stripe].size() < file.wanted)
      file.stripes[stripe].push_back({});
  }
  std::erase_if(unsynced_, [&](const auto& one) { return one.first.first == file.ino; });
}

// On hosts that differ, and are up if any is. There may be fewer than wanted, but one at least.
std::vector<uint32_t> Metaserver::place(uint32_t count, const std::vector<uint32_t>& without) {
  const auto is_there = [&](const StorageHost& host) { return is_up(host.targets().front()); };
  const bool is_any_up =
      std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) { return is_there(*host); });
  std::vector<const StorageHost*> hosts;
  for (const auto& host : hosts_) {
    const bool is_taken = std::any_of(without.begin(), without.end(), [&](uint32_t target) {
      return calls_.host_of(target) == host->number();
    });
    if (!is_taken && (is_there(*host) || !is_any_up)) hosts.push_back(host.get());
  }
  std::vector<uint32_t> targets;
  Chance& chance = clockwork_.chance;
  while (targets.size() < count && !hosts.empty()) {
    const auto chosen = hosts.begin() + chance.pick(static_cast<uint32_t>(hosts.size()));
    const auto& all = (*chosen)->targets();
    targets.push_back(all[chance.pick(static_cast<uint32_t>(all.size()))]);
    hosts.erase(chosen);
  }
  return targets;
}

Records Metaserver::records(uint64_t ino, uint64_t session, bool writable) const {
  const FileRecord& file = files_.at(ino);
  return {file.attributes(), file.layout(), file.capability(session, key_, writable)};
}

void Metaserver::open(uint64_t session, uint64_t ino, bool writable, Done<Records> done) {
  when_cut(ino, [=, this] {
    if (!is_live(session)) return done(std::nullopt);
    if (writable) writing_.emplace(ino, session);
    done(records(ino, session, writable));
  });
}

void Metaserver::close(uint64_t session, uint64_t ino, bool is_unsynced, uint64_t serial) {
  if (!is_live(session)) return;
  clockwork_.trace.note("session %llx has closed file %llu, %s, serial number %llu",
                        static_cast<unsigned long long>(session),
                        static_cast<unsigned long long>(ino), is_unsynced ? "unsynced" : "synced",
                        static_cast<unsigned long long>(serial));
  const bool was_written = writing_.erase({ino, session}) != 0;
  const bool is_known = unsynced_.contains({ino, session});  // it was only read since
  if (is_unsynced && (was_written || is_known)) unsynced_[{ino, session}] = serial;
  const auto held = leases_[ino].find(session);
  if (held == leases_[ino].end() || (held->second.flags & kLeaseDataExclusive) == 0) return;
  held->second.flags = kLeaseData;
  watcher->freed(ino);
  watcher->has_closed(session, ino);
  serve(ino);
}

void Metaserver::synced(uint64_t session, uint64_t ino, uint64_t serial) {
  clockwork_.trace.note("session %llx has synced file %llu, serial number %llu",
                        static_cast<unsigned long long>(session),
                        static_cast<unsigned long long>(ino),
                        static_cast<unsigned long long>(serial));
  const auto found = unsynced_.find({ino, session});
  if (found != unsynced_.end() && found->second == serial) unsynced_.erase(found);
}

void Metaserver::commit(uint64_t session, uint64_t ino, const Commit& commit,
                        Done<Committed> done) {
  if ((commit.flags & kCommitSize) != 0 && cuts_.contains(ino)) {
    return when_cut(ino, [=, this] { this->commit(session, ino, commit, done); });
  }
  if (!is_live(session)) return done(std::nullopt);
  FileRecord& file = files_.at(ino);
  if (commit.file_id != file.file_id) return done(Committed{Status::kOk, file.attributes()});
  for (const auto& [target, incarnation] : commit.acknowledged) {
    const auto names = file.names();
    const bool is_named = std::any_of(names.begin(), names.end(),
                                      [&](const Name& one) { return one.target == target; });
    if (is_named && incarnations_[target] > incarnation && mutant_ != Mutant::kCloseNotRefused)
      return done(Committed{Status::kStaleIncarnation, {}});
  }
  committed_at_[{session, ino}] = VirtualTime::now();
  ++file.version;
  if ((commit.flags & kCommitSize) != 0) file.size = std::max(file.size, commit.size);
  if ((commit.flags & kCommitSynced) != 0) file.durable_stripes |= commit.stripes;
  done(Committed{Status::kOk, file.attributes()});
}

Time Metaserver::committed_at(uint64_t session, uint64_t ino) const {
  const auto found = committed_at_.find({session, ino});
  return found == committed_at_.end() ? Time{} : found->second;
}

bool Metaserver::is_torn(uint64_t ino) const {
  const auto of_ino = [&](const auto& key) { return key.first == ino; };
  return std::any_of(writing_.begin(), writing_.end(), of_ino) ||
         std::any_of(unsynced_.begin(), unsynced_.end(),
                     [&](const auto& one) { return of_ino(one.first); });
}

bool Metaserver::is_quiet() const {
  const bool are_whole = std::all_of(files_.begin(), files_.end(), [](const auto& one) {
    return !one.second.is_replicated || one.second.is_whole();
  });
  const bool is_evicting = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& one) {
    return one.second == Session::kEvicting;
  });
  for (const auto& [ino, file] : files_) {
    for (const Name& name : file.names()) {
      if (!is_known(name.target)) return false;
    }
  }
  return are_whole && !is_evicting && unsynced_.empty() && writing_.empty() && cuts_.empty() &&
         settling_.empty();
}

std::string Metaserver::is_left() const {
  std::string all;
  for (const auto& [ino, file] : files_) {
    if (!file.is_whole()) all += "file " + std::to_string(ino) + " lacks replicas; ";
  }
  for (const auto& [ino, session] : writing_)
    all += "file " + std::to_string(ino) + " is in W of " + std::to_string(session) + "; ";
  for (const auto& [key, serial] : unsynced_)
    all += "file " + std::to_string(key.first) + " is in U of " + std::to_string(key.second) + "; ";
  for (const auto& [ino, cut] : cuts_) all += "file " + std::to_string(ino) + " is being cut; ";
  return all;
}

// ---- sessions ----

uint64_t Metaserver::open_session() {
  const uint64_t session = ++last_number_;
  sessions_[session] = Session::kLive;
  heard_[session] = VirtualTime::now();
  return session;
}

bool Metaserver::is_live(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found != sessions_.end() && found->second == Session::kLive;
}

std::vector<uint64_t> Metaserver::live_sessions() const {
  std::vector<uint64_t> live;
  for (const auto& [session, state] : sessions_) {
    if (state == Session::kLive) live.push_back(session);
  }
  return live;
}

bool Metaserver::renew(uint64_t session) {
  if (!is_live(session)) return false;
  heard_[session] = VirtualTime::now();
  return true;
}

void Metaserver::watch_sessions() {
  for (const uint64_t session : live_sessions()) {
    if (VirtualTime::now() - heard_[session] > kSilent) evict(session);
  }
}

// ---- leases ----

bool Metaserver::holds(uint64_t session, uint64_t ino, uint32_t flags) const {
  const auto of_ino = leases_.find(ino);
  if (of_ino == leases_.end()) return false;
  const auto held = of_ino->second.find(session);
  return held != of_ino->second.end() && (held->second.flags & flags) == flags;
}

void Metaserver::acquire(uint64_t session, uint64_t ino, bool exclusive, Done<Grant> done) {
  wanting_[ino].push_back({session, exclusive, std::move(done)});
  serve(ino);
}

// Recalls what is in the way. The claim of a repair ends at once.
bool Metaserver::is_free_for(const Wanting& wanting, uint64_t ino) {
  bool is_free = true;
  auto& holders = leases_[ino];
  for (auto at = holders.begin(); at != holders.end();) {
    const auto [session, held] = *at;
    const uint32_t in_the_way = wanting.exclusive ? kBoth : kLeaseDataExclusive;
    if (session == wanting.session || (held.flags & in_the_way) == 0) {
      ++at;
    } else if (session == kSystem) {
      at = holders.erase(at);
    } else {
      is_free = false;
      if (is_live(session)) recall(session, ino, {held.flags & in_the_way, held.number});
      ++at;
    }
  }
  return is_free;
}

// Grants what may be granted, in order of arrival.
void Metaserver::serve(uint64_t ino) {
  if (cuts_.contains(ino)) return;
  auto& queue = wanting_[ino];
  while (!queue.empty()) {
    if (!is_live(queue.front().session) && queue.front().session != kSystem) {
      const Wanting gone = std::move(queue.front());
      queue.pop_front();
      gone.done(std::nullopt);
      continue;
    }
    if (!is_free_for(queue.front(), ino)) return serve_later(ino);
    const Wanting wanting = std::move(queue.front());
    queue.pop_front();
    Held& held = leases_[ino][wanting.session];
    held.flags |= wanting.exclusive ? kBoth : kLeaseData;
    held.number = ++last_number_;
    const bool writable = wanting.session == kSystem || writing_.contains({ino, wanting.session});
    wanting.done(Grant{held, records(ino, wanting.session, writable)});
  }
}

void Metaserver::serve_later(uint64_t ino) {
  if (!serving_.insert(ino).second) return;
  clockwork_.agenda.after(kRecallAgain, [this, ino] {
    serving_.erase(ino);
    serve(ino);
  });
}

void Metaserver::give_back(uint64_t session, uint64_t ino, Held what) {
  auto& holders = leases_[ino];
  const auto held = holders.find(session);
  if (held == holders.end() || held->second.number > what.number) return;
  const uint32_t former = std::exchange(held->second.flags, held->second.flags & ~what.flags);
  if (held->second.flags == 0) holders.erase(held);
  if ((former & what.flags & kLeaseDataExclusive) != 0) watcher->freed(ino);
  serve(ino);
}

}  // namespace braidfs::world
