#include "names/dentry_table.h"

#include <algorithm>

namespace braidfs::names {

DentryTable::Directory* DentryTable::known(Group& in, uint64_t directory) {
  const auto found = in.directories.find(directory);
  return found == in.directories.end() ? nullptr : &found->second;
}

DentryTable::Directory* DentryTable::delegated(Group& in, uint64_t directory) {
  Directory* there = known(in, directory);
  return there != nullptr && there->delegated ? there : nullptr;
}

DentryTable::Directory* DentryTable::make(Group& in, uint64_t directory) {
  if (Directory* there = known(in, directory)) return there;
  if (directory_count_ >= kDirectoriesMax) return nullptr;
  ++directory_count_;
  return &in.directories[directory];
}

void DentryTable::lease(uint64_t directory, Clock::time_point now) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = make(in, directory);
  if (there == nullptr || (there->leased && !there->contended)) return;
  there->leased = true;
  const auto contended = in.contended.find(directory);
  if (contended == in.contended.end()) return;
  there->contended = now < contended->second;
  if (!there->contended) in.contended.erase(contended);
}

bool DentryTable::delegate(uint64_t directory) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, directory);
  if (there == nullptr || !there->leased || there->contended) return false;
  if (there->delegated) return true;
  ++delegated_count_;
  for (const auto& [name, entry] : there->names) home(directory, entry);
  return there->delegated = true;
}

void DentryTable::end_delegation(uint64_t directory, Directory& there) {
  if (!there.delegated) return;
  there.delegated = false;
  --delegated_count_;
  for (const auto& [name, entry] : there.names) unhome(directory, entry);
}

// Every change of a name's inode or certainty is made here.
void DentryTable::set(uint64_t directory, const Directory& there, Name& entry, const Name& now) {
  if (there.delegated) unhome(directory, entry);
  entry = now;
  if (there.delegated) home(directory, entry);
}

void DentryTable::take_out(uint64_t directory, Directory& there, std::string_view name,
                           Name& entry) {
  set(directory, there, entry, {.ino = 0, .sure = true, .cached = false});
  changed(there);
  if (!there.complete || there.listing) return;
  there.names.erase(there.names.find(name));
  --name_count_;
}

uint64_t DentryTable::home_of(uint64_t ino) {
  Homes& in = homes_of(ino);
  const std::scoped_lock lock(in.mu);
  const auto found = in.directories.find(ino);
  return found == in.directories.end() ? 0 : found->second;
}

void DentryTable::home(uint64_t directory, const Name& entry) {
  if (!entry.sure || entry.ino == 0 || home_count_ >= kHomesMax) return;
  Homes& in = homes_of(entry.ino);
  const std::scoped_lock lock(in.mu);
  if (in.directories.insert_or_assign(entry.ino, directory).second) ++home_count_;
}

void DentryTable::unhome(uint64_t directory, const Name& entry) {
  if (!entry.sure || entry.ino == 0) return;
  Homes& in = homes_of(entry.ino);
  const std::scoped_lock lock(in.mu);
  const auto found = in.directories.find(entry.ino);
  if (found == in.directories.end() || found->second != directory) return;
  in.directories.erase(found);
  --home_count_;
}

void DentryTable::undelegate(uint64_t directory) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  owners_known_ = false;
  if (Directory* there = known(in, directory)) end_delegation(directory, *there);
}

void DentryTable::complete(uint64_t directory, Clock::time_point until) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = make(in, directory);
  if (there == nullptr || !there->names.empty()) return;
  there->complete = true;
  there->until = until;
}

void DentryTable::extend(uint64_t directory, Clock::time_point until) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  if (Directory* there = known(in, directory)) there->until = until;
}

// nullptr when there is no room: then the directory is neither complete nor has a listing.
DentryTable::Places::value_type* DentryTable::place_of(Directory& there, std::string_view name) {
  const auto found = there.names.find(name);
  if (found != there.names.end()) return &*found;
  if (name_count_ >= kNamesMax) {
    there.complete = false;
    there.listing.reset();
    return nullptr;
  }
  ++name_count_;
  return &*there.names.emplace(std::string(name), Name{}).first;
}

DentryTable::Name* DentryTable::entry_of(Directory& there, std::string_view name) {
  auto* place = place_of(there, name);
  return place == nullptr ? nullptr : &place->second;
}

void DentryTable::came(Directory& there) noexcept {
  changed(there);
  there.listing.reset();
}

bool DentryTable::may_list(const Directory* there, Clock::time_point now) const noexcept {
  return there != nullptr && there->leased && !there->contended && end_of(*there) > now;
}

bool DentryTable::list(uint64_t directory, const Page& page, Clock::time_point now) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, directory);
  if (!may_list(there, now) || there->changed > page.asked) return false;
  const Listing* former = there->listing.get();
  if (former == nullptr || former->end || former->to() != page.behind) {
    there->listing = std::make_unique<Listing>(Listing{.from = page.behind});
  }
  for (const Row& row : page.rows) {
    auto* place = contradicts(*there, row.name, row.ino) ? nullptr : place_of(*there, row.name);
    if (place == nullptr) {
      there->listing.reset();
      return false;
    }
    const Name& known_so_far = place->second;
    set(directory, *there, place->second,
        {.ino = row.ino,
         .sure = true,
         .cached = known_so_far.cached,
         .looked = known_so_far.looked});
    there->listing->rows.push_back({place, row.cookie});
  }
  there->listing->end = page.end;
  return true;
}

// A reply to a request from before lanes changed the name themselves may come after that change.
bool DentryTable::contradicts(const Directory& there, std::string_view name, uint64_t ino) {
  if (!there.delegated) return false;
  const auto found = there.names.find(name);
  if (found == there.names.end()) return there.complete && ino != 0;
  return found->second.sure && found->second.ino != ino;
}

bool DentryTable::put(uint64_t directory, std::string_view name, uint64_t ino,
                      Clock::time_point now) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, directory);
  if (there == nullptr || contradicts(*there, name, ino)) return false;
  const bool may_tell = there->leased && !there->contended;
  Name* entry = entry_of(*there, name);
  if (entry == nullptr) return false;
  if (ino != 0 && !entry->sure) came(*there);
  set(directory, *there, *entry,
      {.ino = ino,
       .sure = true,
       .cached = entry->cached || may_tell,
       .looked = may_tell ? stamp(now) : entry->looked});
  return may_tell;
}

void DentryTable::learn(uint64_t directory, std::string_view name, uint64_t ino) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, directory);
  if (there == nullptr || !there->leased || contradicts(*there, name, ino)) return;
  if (there->names.contains(name)) return;
  if (Name* entry = entry_of(*there, name)) {
    set(directory, *there, *entry, {.ino = ino, .sure = true, .cached = false});
  }
}

void DentryTable::unsure(uint64_t directory, std::string_view name) {
  Group& in = group(directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, directory);
  if (there == nullptr) return;
  came(*there);
  if (Name* entry = entry_of(*there, name)) {
    set(directory, *there, *entry,
        {.ino = entry->ino, .sure = false, .cached = entry->cached, .looked = entry->looked});
  }
}

bool DentryTable::moves(uint64_t directory, std::string_view name, uint64_t new_directory,
                        std::string_view new_name) {
  uint32_t looked = 0;
  {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    const Directory* there = known(in, directory);
    if (there == nullptr) return true;
    const auto found = there->names.find(name);
    if (found == there->names.end() || !found->second.cached) return true;
    looked = found->second.looked;
  }
  Group& in = group(new_directory);
  const std::scoped_lock lock(in.mu);
  Directory* there = known(in, new_directory);
  Name* entry = there == nullptr ? nullptr : entry_of(*there, new_name);
  if (entry == nullptr) return false;
  entry->looked = std::max(entry->looked, looked);
  return entry->cached = true;
}

void DentryTable::forget(Group& in, uint64_t directory) {
  const auto found = in.directories.find(directory);
  if (found == in.directories.end()) return;
  end_delegation(directory, found->second);
  name_count_ -= found->second.names.size();
  --directory_count_;
  in.directories.erase(found);
}

DentryTable::Dropped DentryTable::drop(uint64_t directory, Clock::time_point now) {
  Group& in = group(directory);
  Dropped dropped;
  const std::scoped_lock lock(in.mu);
  if (in.contended.size() >= kContendedMax / kGroupCount) {
    std::erase_if(in.contended, [&](const auto& entry) { return entry.second <= now; });
  }
  if (in.contended.size() < kContendedMax / kGroupCount) in.contended[directory] = now + kContended;
  const Directory* there = known(in, directory);
  if (there == nullptr) return dropped;
  uint32_t newest_ms = static_cast<uint32_t>(kSettling.count());
  for (const auto& [name, entry] : there->names) {
    if (!entry.cached) continue;
    dropped.cached.push_back(name);
    const uint32_t ago_ms = stamp(now) - entry.looked;
    if (entry.looked == 0 || ago_ms >= kSettling.count()) continue;
    dropped.settling.push_back(name);
    newest_ms = std::min(newest_ms, ago_ms);
  }
  if (!dropped.settling.empty()) dropped.looked_at = now - std::chrono::milliseconds(newest_ms);
  forget(in, directory);
  return dropped;
}

void DentryTable::clear() {
  for (Group& in : groups_) {
    const std::scoped_lock lock(in.mu);
    for (auto& [ino, directory] : in.directories) {
      end_delegation(ino, directory);
      name_count_ -= directory.names.size();
    }
    directory_count_ -= in.directories.size();
    in.directories.clear();
  }
}

DentryTable::Clock::time_point DentryTable::end_of(const Directory& directory) const noexcept {
  const Clock::time_point lease{Clock::duration(lease_until_.load())};
  return directory.leased ? std::max(directory.until, lease) : directory.until;
}

DentryTable::Found DentryTable::look(Group& in, uint64_t directory, std::string_view name,
                                     Clock::time_point now, Name*& entry) {
  using Kind = Found::Kind;
  Directory* there = known(in, directory);
  if (there == nullptr) return {};
  const auto end = end_of(*there);
  if (end <= now) return {};
  const auto valid = there->leased && !there->contended ? end - now : Clock::duration::zero();
  const auto found = there->names.find(name);
  if (found == there->names.end()) {  // no entry would remember a time, so there is none
    return there->complete ? Found{Kind::kAbsent, 0, {}} : Found{};
  }
  entry = &found->second;
  if (!entry->sure || (entry->ino != 0 && !there->leased)) return {};
  if (entry->ino != 0) return {Kind::kPresent, entry->ino, valid};
  return {Kind::kAbsent, 0, std::min<std::chrono::nanoseconds>(valid, kAbsentLife)};
}

}  // namespace braidfs::names
