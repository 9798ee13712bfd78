#include "client/datapath.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "client/server_fetch.h"
#include "core/file_time.h"

namespace braidfs::client {

namespace {

constexpr int64_t kOpenPatienceNs = 200'000'000;  // a small file is written within so long

CoreSettings core_settings(const DatapathSettings& settings) {
  return {.lane_count = settings.lane_count,
          .memory = {.dirty_bytes_max = settings.dirty_bytes_max,
                     .held_bytes_max = settings.held_bytes_max},
          .dirty_bytes_per_inode_max = settings.dirty_bytes_per_inode_max,
          .timeout_ms = settings.timeout_ms,
          .busy_poll_us = settings.busy_poll_us};
}

}  // namespace

Datapath::Datapath(const DatapathSettings& settings)
    : cluster_session_(settings.session),
      core_(core_settings(settings)),
      session_(fuse::InitSettings{.max_write = settings.max_write}, *this),
      names_(core_, session_, [this] { core_.events().put({.kind = EventKind::kChangesWait}); }) {
  core_.replier(session_);
  core_.page_invalidator(
      [this](uint64_t ino, uint64_t offset, uint64_t length, uint64_t read, auto then) {
        session_.invalidate_pages(ino, offset, length, read, std::move(then));
      },
      session_.eof_pages());
  core_.written_noter([this](uint64_t ino, const Written& written) {
    const bool sized = (written.flags & kCommitSize) != 0;
    const bool timed = (written.flags & kCommitMtime) != 0;
    const auto now = names::AttributeTable::Clock::now();
    attributes().wrote(ino, {sized ? written.size : 0, timed ? written.mtime_ns : 0}, now);
  });
  core_.child_finder([this](uint64_t ino, const Core::UseChild& use) {
    children().find(ino, Clock::now(), [&](const names::ChildTable::Child& child) {
      use(child.attributes, std::as_bytes(std::span(child.layout)),
          std::as_bytes(std::span(child.capability)));
      return true;
    });
  });
}

Datapath::~Datapath() { stop(0); }

int Datapath::start(uint64_t root_ino) {
  if (const int fault = core_.fault(); fault != 0) return fault;
  std::vector<net::EventLoop*> loops;
  for (uint32_t lane = 0; lane < core_.lane_count(); ++lane) loops.push_back(&core_.loop(lane));
  net::UniqueFd python_end;
  const int started = session_.start(core_, names_, loops, root_ino, python_end);
  if (started != 0) return started;
  if (session_.has_passthrough()) core_.start_passthrough();
  session_.go_on();
  core_.start();
  return python_end.release();
}

void Datapath::use_passthrough() {
  session_.use_passthrough();
  const auto open = [this](int file) {
    const int id = session_.backing_open(file);
    if (id < 0 && !refusal_told_.exchange(true)) {
      log(30, std::string("the kernel does not take files of the local cache to read: ") +
                  std::strerror(-id));
    }
    return id;
  };
  core_.use_passthrough(
      {.open = open, .close = [this](uint32_t id) { session_.backing_close(id); }});
}

void Datapath::stop(uint32_t deadline_ms) {
  core_.stop(deadline_ms);
  session_.stop();
}

std::vector<names::Change> Datapath::changes_take(bool spare_open) {
  auto changes = journal().take();
  const int64_t now_ns = file_time_ns();
  const auto take = [&](names::Change& change) {
    auto* const birth = std::get_if<names::Birth>(&change);
    if (birth == nullptr) return true;
    const bool is_young = std::abs(now_ns - birth->time_ns) <= kOpenPatienceNs;
    auto since = core_.birth_take(birth->ino, spare_open && is_young);
    if (since) birth->since = std::move(*since);
    return since.has_value();
  };
  auto left = changes.begin();
  while (left != changes.end() && take(*left)) ++left;
  if (left != changes.end()) {
    journal().put_back({std::move_iterator(left), std::move_iterator(changes.end())});
    changes.erase(left, changes.end());
  }
  return changes;
}

std::string Datapath::open_ahead(const AheadPage& page) {
  std::string taken(page.names.size(), '\0');
  for (size_t at = 0; at < taken.size(); ++at) {
    if (page.wanted[at] == std::byte{0}) continue;
    const auto record = page.attributes.subspan(at * record::kBytes, record::kBytes);
    const auto capability = page.capabilities.subspan(at * sizeof(Capability), sizeof(Capability));
    const auto decoded = decode_attributes(record);
    const auto view = decode_view(page.layouts[at], capability);
    if (!decoded || !view) continue;
    taken[at] = '\1';
    children().put(page.parent, record, page.layouts[at], capability);
    if (page.has_names) dentries().learn(page.parent, page.names[at], decoded->ino);
    want_in_server_caches(core_.context(), *decoded, *view);
  }
  tell_servers(core_.context());
  return taken;
}

int64_t Datapath::child_drop(uint64_t ino) {
  const bool known = children().drop(ino);
  if (const auto handles = core_.take_granted(ino)) return *handles;
  return known ? 0 : -1;
}

std::vector<std::pair<std::string, uint64_t>> Datapath::counters() {
  auto all = core_.counters();
  std::map<std::string, uint64_t> rdma;
  core_.rails().add_counters(rdma);
  all.insert(all.end(), rdma.begin(), rdma.end());
  if (LocalCache* const cache = core_.local_cache()) cache->add_counters(all);
  if (Passthrough* const passthrough = core_.passthrough()) {
    for (auto& counter : passthrough->counters()) all.push_back(std::move(counter));
  }
  const auto fuse = session_.counters();
  all.insert(all.end(), fuse.begin(), fuse.end());
  const auto names = names_.counters();
  all.insert(all.end(), names.begin(), names.end());
  return all;
}

void Datapath::upcall_interrupted(uint32_t slot) {
  core_.events().put({.kind = EventKind::kInterrupt, .token = slot});
}

// The payload of the event is u32 uid, gid, pid and 0, and then the request after its header.
void Datapath::called(uint32_t slot, const fuse::RequestHead& head, uint32_t opcode,
                      std::span<const std::byte> body, int outcome) {
  const std::array<uint32_t, 4> caller{head.uid, head.gid, head.pid, 0};
  std::string payload(sizeof(caller) + body.size(), '\0');
  std::memcpy(payload.data(), caller.data(), sizeof(caller));
  std::memcpy(payload.data() + sizeof(caller), body.data(), body.size());
  core_.events().put({.kind = EventKind::kCall,
                      .token = slot,
                      .ino = head.nodeid,
                      .a = opcode,
                      .b = outcome,
                      .payload = std::move(payload)});
}

void Datapath::notified(uint64_t token) {
  core_.events().put({.kind = EventKind::kDone, .token = token});
}

void Datapath::lease_until(std::chrono::milliseconds left) {
  const auto until = Clock::now() + left;
  attributes().believe(until);
  dentries().believe(until);
  children().believe(until);
  core_.lease_until(until);
}

std::optional<std::string> Datapath::listing_read(uint64_t directory, uint64_t offset,
                                                  uint32_t size) {
  std::optional<std::string> read;
  names_.list(directory, offset, size, [&](std::span<const std::byte> body) {
    read.emplace(reinterpret_cast<const char*>(body.data()), body.size());
  });
  return read;
}

size_t Datapath::lease_drop(uint64_t token, std::span<const uint64_t> inos, uint32_t facets) {
  std::vector<names::LostLease> lost;
  lost.reserve(inos.size());
  for (const uint64_t ino : inos) lost.push_back({ino, core_.asked_ranges(ino)});
  return names_.drop_leases(token, lost, facets);
}

void Datapath::leases_clear() {
  attributes().clear();
  dentries().clear();
}

void Datapath::unmounted() { core_.events().put({.kind = EventKind::kUnmounted}); }

void Datapath::log(int level, std::string_view text) {
  core_.events().log(static_cast<LogLevel>(level), 0, std::string(text));
}

}  // namespace braidfs::client
