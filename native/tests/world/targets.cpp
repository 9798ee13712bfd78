// The metaserver of a world: its targets, replicas that are dropped, truncation.
#include <algorithm>

#include "metaserver.h"

namespace braidfs::world {

namespace {

constexpr Duration kLease = seconds(10);
constexpr Duration kAnswering = seconds(4);
constexpr Duration kDropPatience = seconds(2);
constexpr Duration kDropAgain = milliseconds(250);
constexpr Duration kCutPatience = seconds(4);
constexpr Duration kCutAgain = milliseconds(400);
constexpr Duration kUnreachable = seconds(15);

Frame drop_frame(const Name& name) {
  Frame frame = frame_of(Op::kDropNames, {}, name.target);
  frame.header.length = 1;
  const ObjectName named{.file_id = name.file_id, .stripe_index = name.number};
  const auto raw = std::as_bytes(std::span(&named, 1));
  frame.body.assign(raw.begin(), raw.end());
  return frame;
}

}  // namespace

// ---- registration ----

// A target that lost power answers for no file of W and U any more, unless it is the last one.
void Metaserver::lost_power(uint32_t target) {
  for (const auto& [ino, file] : files_) {
    if (!file.is_replicated || !is_torn(ino)) continue;
    std::vector<Name> names;
    for (uint32_t stripe = 0; stripe < file.width; ++stripe) {
      const auto all = file.names_of(stripe);
      if (all.size() < 2) continue;
      for (const Name& name : all) {
        if (name.target == target) names.push_back(name);
      }
    }
    remove(ino, names);
  }
}

StorageHost::Registered Metaserver::register_host(
    uint32_t host, uint64_t life, const std::map<uint32_t, uint64_t>& incarnations) {
  StorageHost::Registered reply;
  for (const auto& [target, incarnation] : incarnations) {
    uint64_t& known = incarnations_[target];
    const bool is_raised = known != 0 && incarnation > known;
    if (is_raised) raised_at_[target] = VirtualTime::now();
    if (is_raised && mutant_ != Mutant::kIncarnationNotKept) lost_power(target);
    known = std::max(known, incarnation);
  }
  for (const Name& name : dropped_) {
    if (calls_.host_of(name.target) == host && mutant_ != Mutant::kDroppedNameAnswered)
      reply.dropped.push_back({name.target, name.object()});
  }
  known_hosts_[host] = {life, VirtualTime::now() + kLease, VirtualTime::now()};
  reply.sessions = served_sessions();
  return reply;
}

std::vector<uint64_t> Metaserver::served_sessions() const {
  if (mutant_ != Mutant::kNoFence) return live_sessions();
  std::vector<uint64_t> all;
  for (const auto& [session, state] : sessions_) all.push_back(session);
  return all;
}

std::optional<std::vector<uint64_t>> Metaserver::beat(uint32_t host, uint64_t life) {
  Host& known = known_hosts_[host];
  const Time now = VirtualTime::now();
  if (known.life != life || now > known.lease_ends) return std::nullopt;
  known.lease_ends = now + kLease;
  known.heard = now;
  return served_sessions();
}

bool Metaserver::is_up(uint32_t target) const {
  const Host& host = known_hosts_[calls_.host_of(target)];
  return host.life != 0 && VirtualTime::now() - host.heard < kAnswering;
}

bool Metaserver::is_known(uint32_t target) const {
  const uint32_t number = calls_.host_of(target);
  StorageHost& host = *hosts_[number];
  return host.serves() && host.life() == known_hosts_[number].life &&
         host.store_of(target).incarnation() == incarnation(target);
}

uint64_t Metaserver::incarnation(uint32_t target) const {
  const auto found = incarnations_.find(target);
  return found == incarnations_.end() ? 0 : found->second;
}

Time Metaserver::raised_at(uint32_t target) const {
  const auto found = raised_at_.find(target);
  return found == raised_at_.end() ? Time{} : found->second;
}

bool Metaserver::has_run_out(uint32_t target) const {
  return VirtualTime::now() > known_hosts_[calls_.host_of(target)].lease_ends;
}

// ---- drops ----

std::vector<Name> Metaserver::droppable(const FileRecord& file, const std::vector<Name>& names,
                                        const std::function<bool(uint32_t)>& is_there) const {
  std::vector<Name> found;
  for (uint32_t stripe = 0; stripe < file.width; ++stripe) {
    std::vector<Name> gone;
    bool stays = false;
    for (const Name& name : file.names_of(stripe)) {
      const bool is_named = std::find(names.begin(), names.end(), name) != names.end();
      if (is_named) gone.push_back(name);
      stays = stays || (!is_named && is_there(name.target));
    }
    if (stays || mutant_ == Mutant::kLastDropped)
      found.insert(found.end(), gone.begin(), gone.end());
  }
  return found;
}

void Metaserver::remove(uint64_t ino, const std::vector<Name>& names) {
  FileRecord& file = files_.at(ino);
  for (const Name& name : names) {
    if (!file.remove(name)) continue;
    clockwork_.trace.note("file %llu drops object %llu.%x of target %u",
                          static_cast<unsigned long long>(ino),
                          static_cast<unsigned long long>(name.file_id), name.number, name.target);
    dropped_.insert(name);
    watcher->layout_changed(ino);
  }
}

void Metaserver::drop(uint64_t session, const Drop& drop, Done<Records> done) {
  if (!is_live(session)) return done(std::nullopt);
  const FileRecord& file = files_.at(drop.ino);
  if (file.file_id == drop.file_id && file.epoch == drop.epoch) {
    const auto is_there = [this](uint32_t target) { return is_up(target); };
    remove(drop.ino, droppable(file, drop.names, is_there));
  }
  std::vector<Name> names;
  for (const Name& name : drop.names) {
    if (dropped_.contains(name)) names.push_back(name);
  }
  settle(names, [=, this] {
    for (const Name& name : names) watcher->told_dropped(name);
    when_cut(drop.ino, [=, this] {
      done(is_live(session) ? std::optional(records(drop.ino, session)) : std::nullopt);
    });
  });
}

void Metaserver::settle(const std::vector<Name>& names, const std::function<void()>& then) {
  auto left = std::make_shared<size_t>(1);
  const auto one_less = [left, then] {
    if (--*left == 0) then();
  };
  for (const Name& name : names) {
    if (settled_.contains(name)) continue;
    ++*left;
    auto& waiting = settling_[name];
    waiting.push_back(one_less);
    if (waiting.size() == 1) settle_one(name);
  }
  one_less();
}

// Until its target has said that it answers nobody for the name, or cannot answer.
void Metaserver::settle_one(const Name& name) {
  if (has_run_out(name.target)) return settled(name);
  calls_.call(name.target, drop_frame(name), kDropPatience, [this, name](const Answer& answer) {
    if (answer.is_ok() || answer.kind == Answer::Kind::kNobody) return settled(name);
    clockwork_.agenda.after(kDropAgain, [this, name] { settle_one(name); });
  });
}

void Metaserver::settled(const Name& name) {
  settled_.insert(name);
  const auto waiting = settling_.extract(name);
  for (const auto& then : waiting.mapped()) then();
}

// ---- truncation ----

void Metaserver::when_cut(uint64_t ino, std::function<void()> then) {
  const auto found = cuts_.find(ino);
  if (found == cuts_.end()) return then();
  found->second.parked.push_back(std::move(then));
}

uint32_t Metaserver::next_epoch(const FileRecord& file) const {
  const auto found = planned_.find(file.ino);
  const bool is_reserved = found != planned_.end() && found->second.file_id == file.file_id;
  return (is_reserved ? std::max(file.epoch, found->second.epoch) : file.epoch) + 1;
}

void Metaserver::set_size(uint64_t session, uint64_t ino, uint64_t size, uint64_t reach,
                          Done<Records> done) {
  if (cuts_.contains(ino))
    return when_cut(ino, [=, this] { set_size(session, ino, size, reach, done); });
  if (!is_live(session)) return done(std::nullopt);
  FileRecord& file = files_.at(ino);
  const uint64_t former = std::max(file.size, reach);
  clockwork_.trace.note("file %llu gets size %llu after %llu", static_cast<unsigned long long>(ino),
                        static_cast<unsigned long long>(size),
                        static_cast<unsigned long long>(former));
  if (size < former && size == 0) {
    replace(file);
    watcher->layout_changed(ino);
  }
  if (size >= former || size == 0) {
    ++file.version;
    file.size = size;
    return done(records(ino, session));
  }
  begin_cut(ino, size);
  when_cut(ino, [=, this] {
    done(is_live(session) ? std::optional(records(ino, session)) : std::nullopt);
  });
}

// Each attempt has an epoch of its own, so that the targets refuse what is late of another one.
void Metaserver::begin_cut(uint64_t ino, uint64_t size) {
  FileRecord& file = files_.at(ino);
  ++file.version;
  file.size = size;
  cuts_[ino].size = size;
  cut_again(ino);
}

void Metaserver::cut_again(uint64_t ino) {
  FileRecord& file = files_.at(ino);
  file.epoch = next_epoch(file);
  cut_targets(ino);
}

void Metaserver::cut_targets(uint64_t ino) {
  const FileRecord& file = files_.at(ino);
  const auto names = file.names();
  auto failed = std::make_shared<std::set<uint32_t>>();
  auto left = std::make_shared<size_t>(names.size());
  for (const Name& name : names) {
    Frame frame = frame_of(Op::kTruncate, name.object(), name.target, file.epoch);
    frame.header.offset = file.object_length(name.stripe(), cuts_.at(ino).size);
    if (file.was_durable(name.stripe()) && frame.header.offset != 0)
      frame.header.flags |= kFlagMustExist;
    calls_.call(name.target, frame, kCutPatience,
                [this, ino, failed, left, target = name.target](const Answer& answer) {
                  if (!answer.is_ok()) failed->insert(target);
                  if (--*left == 0) was_cut(ino, *failed);
                });
  }
}

// A replica that cannot be cut is dropped, if another one of its stripe is there.
void Metaserver::was_cut(uint64_t ino, const std::set<uint32_t>& failed) {
  Cut& cut = cuts_.at(ino);
  const FileRecord& file = files_.at(ino);
  const Time now = VirtualTime::now();
  std::erase_if(cut.failing, [&](const auto& one) { return !failed.contains(one.first); });
  std::vector<Name> lost;
  for (const uint32_t target : failed) cut.failing.emplace(target, now);
  for (const Name& name : file.names()) {
    const bool fails =
        failed.contains(name.target) &&
        (has_run_out(name.target) || now - cut.failing.at(name.target) > kUnreachable);
    if (fails && file.is_replicated) lost.push_back(name);
  }
  const auto is_there = [&](uint32_t target) {
    return !failed.contains(target) && !has_run_out(target);
  };
  remove(ino, droppable(file, lost, is_there));
  if (!failed.empty()) {
    return clockwork_.agenda.after(clockwork_.chance.up_to(kCutAgain),
                                   [this, ino] { cut_again(ino); });
  }
  std::vector<Name> gone;
  for (const Name& name : dropped_) {
    if (name.file_id == file.file_id) gone.push_back(name);
  }
  settle(gone, [this, ino] {
    const auto ended = cuts_.extract(ino);
    for (const auto& then : ended.mapped().parked) then();
    serve(ino);
  });
}

}  // namespace braidfs::world
