#include "judge.h"

#include <algorithm>
#include <cstring>

#include "braidfs/leases.h"

namespace braidfs::world {

namespace {

std::string word(const Name& name) {
  return "object " + std::to_string(name.file_id) + "." + std::to_string(name.number) +
         " of target " + std::to_string(name.target);
}

bool is_of_bytes(Op op) {
  return op == Op::kRead || op == Op::kWrite || op == Op::kSync || op == Op::kPunch ||
         op == Op::kSeek;
}

}  // namespace

std::vector<uint64_t> values_of(Bytes bytes, uint32_t units) {
  constexpr size_t kUnit = Truth::kUnit;
  bytes.resize(size_t{units} * kUnit);
  std::vector<uint64_t> values(units);
  for (uint32_t unit = 0; unit < units; ++unit) {
    const auto whole = std::span(bytes).subspan(unit * kUnit, kUnit);
    std::memcpy(&values[unit], whole.data(), sizeof(uint64_t));
    for (size_t at = 0; at < kUnit; at += sizeof(uint64_t)) {
      if (std::memcmp(&values[unit], whole.data() + at, sizeof(uint64_t)) != 0)
        values[unit] = ~uint64_t{0};
    }
  }
  return values;
}

SharedFile* Judge::file_of(uint64_t ino) {
  for (const auto& file : files_) {
    if (file->ino == ino) return file.get();
  }
  return nullptr;
}

// ---- what may be lost ----

// If all replicas of a stripe lost power, what was not synced may be lost, unless a client that
// lives has it.
void Judge::may_have_lost(SharedFile& file) {
  const FileRecord& record = metaserver_.file(file.ino);
  for (uint32_t stripe = 0; stripe < record.width; ++stripe) {
    const auto names = record.names_of(stripe);
    Time all_lost = Time::max();  // since when each has lost power
    for (const Name& name : names) {
      const auto lost = lost_power_.find(name);
      all_lost = std::min(all_lost, lost == lost_power_.end() ? Time{} : lost->second);
    }
    if (all_lost == Time{}) continue;
    for (uint32_t unit = 0; unit < file.truth.count(); ++unit) {
      if (unit / file.chunk_units % record.width == stripe) file.truth.lost_power(unit, all_lost);
    }
  }
}

void Judge::lost_power(const StorageHost& host) {
  const auto& targets = host.targets();
  for (const auto& file : files_) {
    if (recalls_leases || file->was_closed) file->truth.may_have_lost();
    for (const Name& name : metaserver_.file(file->ino).names()) {
      if (std::count(targets.begin(), targets.end(), name.target) != 0)
        lost_power_[name] = VirtualTime::now();
    }
    may_have_lost(*file);
  }
}

void Judge::let_go(uint64_t session, uint64_t ino) {
  SharedFile* const file = file_of(ino);
  if (file == nullptr) return;
  clockwork_.trace.note("session %llx lets file %llu go", static_cast<unsigned long long>(session),
                        static_cast<unsigned long long>(ino));
  file->truth.let_go(session);
  may_have_lost(*file);
}

void Judge::has_closed(uint64_t session, uint64_t ino) {
  SharedFile* const file = file_of(ino);
  if (file == nullptr) return;
  file->was_closed = true;
  if (!lost_power_.empty()) file->truth.may_have_lost();
  file->truth.has_closed(session);
  may_have_lost(*file);
}

void Judge::was_evicted(uint64_t session) {
  ended_.emplace(session, VirtualTime::now());
  for (const auto& file : files_) {
    file->truth.died(session);
    file->is_size_known = false;
    file->has_remains = true;
    file->size = metaserver_.file(file->ino).size;
    if (file->cutter == session) file->cutter = 0;
    if (file->refuser == session) file->refuser = 0;
    may_have_lost(*file);
  }
}

// ---- replicas ----

std::optional<Bytes> Judge::object(const Name& name) {
  for (const auto& host : hosts_) {
    const auto& targets = host->targets();
    if (std::count(targets.begin(), targets.end(), name.target) == 0) continue;
    if (!host->is_up()) return std::nullopt;
    const FileRecord* record = nullptr;
    for (const auto& [ino, one] : metaserver_.files()) {
      if (one.file_id == name.file_id) record = &one;
    }
    if (record == nullptr) return std::nullopt;
    constexpr uint32_t kPartBytes = 64u << 10;
    std::vector<std::byte> part(kPartBytes);
    std::vector<uint64_t> sums(kPartBytes / limits::kBlockSize);
    Bytes all;
    store::ChunkStore& store = host->store_of(name.target);
    while (true) {
      const auto result = store.read(
          {.object = name.object(), .offset = all.size(), .length = kPartBytes, .buffer = part},
          sums);
      if (result.status == Status::kNoObject) return all;
      if (result.status == Status::kEio) return std::nullopt;
      if (result.status != Status::kOk) {
        throw BrokenPromise("a store cannot be read: status " +
                            std::to_string(static_cast<int>(result.status)));
      }
      all.insert(all.end(), part.begin(), part.begin() + result.length);
      if (result.length < kPartBytes) return all;
    }
  }
  return std::nullopt;
}

// Whether the object has what it must: a unit's place is `least` or a later one.
std::string Judge::check(const SharedFile& file, const Name& name, const Truth::Places& least) {
  const auto bytes = object(name);
  if (!bytes) return {};
  const uint32_t width = metaserver_.file(file.ino).width;
  const size_t chunk_bytes = size_t{file.chunk_units} * Truth::kUnit;
  for (uint32_t chunk = name.stripe(); chunk * file.chunk_units < file.truth.count();
       chunk += width) {
    const size_t from = std::min(bytes->size(), chunk / width * chunk_bytes);
    const size_t to = std::min(bytes->size(), from + chunk_bytes);
    const Bytes some(bytes->begin() + static_cast<ptrdiff_t>(from),
                     bytes->begin() + static_cast<ptrdiff_t>(to));
    const std::string wrong =
        file.truth.check(least, chunk * file.chunk_units, values_of(some, file.chunk_units));
    if (!wrong.empty()) return word(name) + ": " + wrong;
  }
  return {};
}

void Judge::recovered(StorageHost& host) {
  const auto& targets = host.targets();
  for (const auto& file : files_) {
    for (const Name& name : metaserver_.file(file->ino).names()) {
      if (std::count(targets.begin(), targets.end(), name.target) == 0) continue;
      const std::string wrong = check(*file, name, file->truth.safe());
      if (!wrong.empty())
        throw BrokenPromise("I1: file " + std::to_string(file->ino) + " after a start of host " +
                            std::to_string(host.number()) + ": " + wrong);
    }
  }
}

// I2: all replicas have what was closed, but for those of which the metaserver did not know, when
// it took the commit, that they had lost power.
void Judge::closed(SharedFile& file, uint64_t session, const Truth::Since& since) {
  const FileRecord& record = metaserver_.file(file.ino);
  const Time committed_at = metaserver_.committed_at(session, file.ino);
  if (file.truth.since().losses == since.losses) {
    for (const Name& name : record.names()) {
      if (!metaserver_.is_known(name.target)) continue;
      const bool was_known =
          record.is_replicated && metaserver_.raised_at(name.target) < committed_at;
      if (lost_power_.contains(name) && !was_known) continue;
      const std::string wrong = check(file, name, since.answered);
      if (!wrong.empty()) throw BrokenPromise("I2: after a close, " + wrong);
    }
  }
  file.truth.closed(since.answered);
}

void Judge::layout_changed(uint64_t ino) {
  const FileRecord& record = metaserver_.file(ino);
  for (uint32_t stripe = 0; stripe < record.width; ++stripe) {
    if (record.names_of(stripe).empty())
      throw BrokenPromise("I3: a stripe of file " + std::to_string(ino) + " has no replica");
  }
  SharedFile* const file = file_of(ino);
  if (file == nullptr) return;
  if (std::exchange(file->file_id, record.file_id) != record.file_id) file->has_remains = false;
  may_have_lost(*file);
}

// I4
void Judge::look_equal(uint64_t ino) {
  const FileRecord& record = metaserver_.file(ino);
  for (uint32_t stripe = 0; stripe < record.width; ++stripe) {
    std::optional<Bytes> first;
    for (const Name& name : record.names_of(stripe)) {
      if (!metaserver_.is_known(name.target)) continue;
      auto one = object(name);
      if (!one) continue;
      while (!one->empty() && one->back() == std::byte{0}) one->pop_back();
      if (!first) first = one;
      if (*first == *one) continue;
      const auto differs = std::mismatch(first->begin(), first->end(), one->begin(), one->end());
      throw BrokenPromise("I4: replicas of file " + std::to_string(ino) + " differ in stripe " +
                          std::to_string(stripe) + " from byte " +
                          std::to_string(differs.first - first->begin()) + " on: " + word(name));
    }
  }
}

void Judge::freed(uint64_t ino) { look_equal(ino); }

// I6, I7, I15
void Judge::added(uint64_t ino) {
  const FileRecord& record = metaserver_.file(ino);
  for (const uint64_t session : metaserver_.live_sessions()) {
    if (metaserver_.holds(session, ino, kLeaseDataExclusive))
      throw BrokenPromise("I6: file " + std::to_string(ino) + " gets a copy while it is written");
  }
  for (const Name& name : record.names()) {
    if (!metaserver_.is_known(name.target)) continue;
    for (const auto& host : hosts_) {
      const auto& targets = host->targets();
      if (std::count(targets.begin(), targets.end(), name.target) == 0) continue;
      store::ObjectFigures figures;
      const Status status = host->store_of(name.target).stat(name.object(), figures);
      if (status == Status::kOk && figures.epoch >= record.epoch) continue;
      throw BrokenPromise("I15: " + word(name) + " does not refuse epochs before " +
                          std::to_string(record.epoch));
    }
  }
  look_equal(ino);
}

void Judge::told_dropped(const Name& name) { gone_.emplace(name, VirtualTime::now()); }

// I5: of a dropped name nobody gets an answer who asks after that was told. So it is with a client
// whose session has ended.
void Judge::frame(const Wire& wire, Side from, const Frame& frame) {
  if (wire.client() == 0 || !is_of_bytes(frame.op())) return;
  const std::pair key(&wire, frame.header.request_id);
  if (from == Side::kClient) {
    const Name name{frame.header.target, frame.header.file_id, frame.header.stripe_index};
    asked_[key] = {name, VirtualTime::now()};
    return;
  }
  const auto asked = asked_.extract(key);
  if (asked.empty() || frame.status() != Status::kOk) return;
  const auto& [name, when] = asked.mapped();
  const auto gone = gone_.find(name);
  if (gone != gone_.end() && when > gone->second)
    throw BrokenPromise("I5: a client gets an answer for " + word(name) + ", which was dropped");
  const auto ended = ended_.find(wire.client());
  if (ended != ended_.end() && when > ended->second)
    throw BrokenPromise("a client that was evicted gets an answer for " + word(name));
}

// I4, I12, I16
void Judge::at_the_end() {
  for (const auto& [ino, record] : metaserver_.files()) {
    if (record.is_replicated && !record.is_whole())
      throw BrokenPromise("I12: file " + std::to_string(ino) + " lacks replicas at the end");
    for (const Name& name : record.names()) {
      if (!metaserver_.is_known(name.target))
        throw BrokenPromise("I16: " + word(name) + " does not serve at the end");
    }
    look_equal(ino);
    if (record.is_replicated && metaserver_.is_torn(ino))
      throw BrokenPromise("file " + std::to_string(ino) + " is in W or U at the end");
  }
}

}  // namespace braidfs::world
