// Datapath for Python (docs/INTERFACES.md 3.1). Only translation: arguments to the types of
// client/datapath.h, -errno to OSError, malformed or unknown arguments to ValueError. No call back
// into Python; the GIL is let go in every call that takes a lock or waits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "calls.h"
#include "client/datapath.h"
#include "client_changes.h"
#include "commits.h"
#include "handover.h"
#include "rdma.h"
#include "tls.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using braidfs::Status;
using braidfs::bindings::checked;
using braidfs::bindings::ReleaseGil;
using braidfs::bindings::text;
using braidfs::bindings::TlsHandle;
using braidfs::bindings::unlocked;
using braidfs::bindings::view;
using braidfs::client::Datapath;
using braidfs::client::DatapathSettings;

std::unique_ptr<Datapath> make_datapath(uint32_t lane_count, uint32_t max_write,
                                        uint64_t dirty_bytes_max,
                                        uint64_t dirty_bytes_per_inode_max, uint64_t held_bytes_max,
                                        uint32_t timeout_ms, uint32_t busy_poll_us,
                                        uint64_t session) {
  const DatapathSettings settings{.lane_count = lane_count,
                                  .max_write = max_write,
                                  .dirty_bytes_max = dirty_bytes_max,
                                  .dirty_bytes_per_inode_max = dirty_bytes_per_inode_max,
                                  .held_bytes_max = held_bytes_max,
                                  .timeout_ms = timeout_ms,
                                  .busy_poll_us = busy_poll_us,
                                  .session = session};
  checked(settings.is_valid(),
          "1 to 64 lanes; max_write a multiple of 4096 up to 16 MiB; busy_poll_us up to 1000");
  return std::make_unique<Datapath>(settings);
}

void mount(Datapath& path, const std::string& mountpoint, const std::string& source,
           const std::string& options, bool read_only) {
  const int mounted = unlocked([&] {
    return path.mount({mountpoint, source, options, read_only});
  });
  checked(mounted, mountpoint.c_str());
}

void attach(Datapath& path, int fuse_fd) {
  checked(fuse_fd >= 0, "fuse_fd is negative");
  checked(path.attach(braidfs::net::UniqueFd(fuse_fd)), "/dev/fuse");
}

int rdma_open(Datapath& path, const std::string& device, uint8_t port, uint8_t gid_index,
              uint32_t memory_mib) {
  std::string reason;
  const auto address = braidfs::bindings::rdma_address(device, port, gid_index);
  const int rail = unlocked([&] {
    return path.rails().open(address, path.core().lane_count(), uint64_t{memory_mib} << 20, false,
                             reason);
  });
  if (rail < 0) braidfs::bindings::raise_rdma_error(-rail, reason);
  return rail;
}

nb::tuple rdma_offer(Datapath& path, uint32_t rail, uint32_t lane) {
  uint64_t token = 0;
  braidfs::rdma::Peer local;
  const int error = unlocked([&] { return path.rails().offer(rail, lane, token, local); });
  return braidfs::bindings::offer_tuple(error, token, local);
}

void connection_put(Datapath& path, uint32_t lane, uint32_t node, int fd, uint64_t rdma,
                    TlsHandle* tls) {
  checked(fd >= 0, "fd is negative");
  braidfs::net::Socket socket(braidfs::net::UniqueFd(fd), braidfs::bindings::take_tls(tls));
  auto claim = path.rails().claim(rdma);
  checked(rdma == 0 || (claim.channel && claim.lane == lane), "no queue pair has this token");
  const bool taken = unlocked([&] {
    return path.core().connection_put(lane, node, std::move(socket), std::move(claim.channel));
  });
  checked(taken, "no such lane");
}

// passthrough: half of it is for whole copies.
void cache_open(Datapath& path, const std::string& directory, uint64_t bytes_max,
                const nb::bytes& cluster, bool passthrough) {
  braidfs::cache::StoreSettings settings{.directory = directory, .bytes_max = bytes_max};
  if (passthrough) settings.bytes_max -= settings.copies_bytes_max = bytes_max / 2;
  checked(cluster.size() == settings.cluster.size(), "cluster is not of 16 bytes");
  std::memcpy(settings.cluster.data(), cluster.data(), cluster.size());
  std::string reason;
  if (!unlocked([&] { return path.core().use_cache(settings, reason); }))
    throw nb::value_error(reason.c_str());
  if (passthrough) path.use_passthrough();
}

void inode_put(Datapath& path, const nb::bytes& attributes, const nb::bytes& layout,
               const nb::bytes& capability) {
  const bool taken = unlocked(
      [&] { return path.core().inode_put(view(attributes), view(layout), view(capability)); });
  checked(taken, "a malformed record, or too many inodes");
}

void inode_resize(Datapath& path, const nb::bytes& attributes, const nb::bytes& layout,
                  const nb::bytes& capability) {
  const bool taken = unlocked(
      [&] { return path.core().inode_resize(view(attributes), view(layout), view(capability)); });
  checked(taken, "a malformed record, or too many inodes");
}

void attributes_put(Datapath& path, const nb::bytes& attributes, uint32_t valid_ms, bool leased) {
  const auto now = braidfs::names::AttributeTable::Clock::now();
  checked(path.attributes().put(view(attributes), std::chrono::milliseconds(valid_ms), now, leased),
          "a malformed record");
}

// The wanted of these records, under leases; returns those that are known by their directory's
// grant as of before: these are not put.
std::vector<uint64_t> attributes_put_rows(Datapath& path, const nb::bytes& attributes,
                                          const nb::bytes& wanted) {
  namespace record = braidfs::names::record;
  checked(attributes.size() == wanted.size() * record::kBytes, "columns of different lengths");
  const auto records = view(attributes);
  const auto is_wanted = view(wanted);
  return unlocked([&] {
    std::vector<uint64_t> older;
    const auto now = braidfs::names::AttributeTable::Clock::now();
    for (size_t index = 0; index < is_wanted.size(); ++index) {
      if (is_wanted[index] == std::byte{0}) continue;
      const auto one = records.subspan(index * record::kBytes, record::kBytes);
      const auto ino = record::field<uint64_t>(one, record::kIno);
      if (path.children().is_older(ino, record::field<uint64_t>(one, record::kChangeVersion))) {
        older.push_back(ino);
      } else {
        path.attributes().put(one, std::chrono::milliseconds(0), now, true);
      }
    }
    return older;
  });
}

nb::bytes open_ahead(Datapath& path, uint64_t parent, bool has_names,
                     const std::vector<nb::bytes>& names, const nb::bytes& attributes,
                     const std::vector<nb::bytes>& layouts, const nb::bytes& capabilities,
                     const nb::bytes& wanted) {
  braidfs::client::AheadPage page;
  page.parent = parent;
  page.has_names = has_names;
  page.attributes = view(attributes);
  page.capabilities = view(capabilities);
  page.wanted = view(wanted);
  for (const auto& name : names) page.names.push_back(text(name));
  for (const auto& layout : layouts) page.layouts.push_back(view(layout));
  checked(page.is_valid(), "columns of different lengths");
  const std::string taken = unlocked([&] { return path.open_ahead(page); });
  return nb::bytes(taken.data(), taken.size());
}

size_t announce(Datapath& path, const nb::bytes& inos, bool replaces) {
  checked(inos.size() % sizeof(uint64_t) == 0, "inode numbers of eight bytes each");
  std::vector<uint64_t> numbers(inos.size() / sizeof(uint64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), inos.data(), inos.size());
  return unlocked([&] { return path.core().announce(numbers, replaces); });
}

nb::tuple children_counts(Datapath& path) {
  const auto& children = path.children();
  return nb::make_tuple(children.weight(), children.used(), children.unused());
}

void entries_complete(Datapath& path, uint64_t ino, uint32_t valid_ms) {
  const auto now = braidfs::names::DentryTable::Clock::now();
  path.dentries().complete(ino, now + std::chrono::milliseconds(valid_ms));
}

void entries_extend(Datapath& path, uint64_t ino, uint32_t valid_ms) {
  const auto now = braidfs::names::DentryTable::Clock::now();
  path.dentries().extend(ino, now + std::chrono::milliseconds(valid_ms));
}

// The rows as columns; inos and cookies are numbers of eight bytes.
bool names_list(Datapath& path, uint64_t directory, const std::vector<nb::bytes>& names,
                const nb::bytes& inos, const nb::bytes& cookies, uint64_t behind, bool end,
                uint64_t asked) {
  using braidfs::names::DentryTable;
  constexpr size_t kNumber = sizeof(uint64_t);
  checked(inos.size() == names.size() * kNumber && cookies.size() == inos.size(),
          "columns of different lengths");
  const auto number = [](const nb::bytes& column, size_t index) {
    uint64_t value;
    std::memcpy(&value, static_cast<const char*>(column.data()) + index * kNumber, kNumber);
    return value;
  };
  std::vector<DentryTable::Row> rows;
  rows.reserve(names.size());
  for (size_t index = 0; index < names.size(); ++index) {
    rows.push_back({text(names[index]), number(inos, index), number(cookies, index)});
  }
  return unlocked([&] {
    return path.dentries().list(directory, {behind, rows, end, asked}, DentryTable::Clock::now());
  });
}

nb::object listing_read(Datapath& path, uint64_t directory, uint64_t offset, uint32_t size) {
  const auto body = unlocked([&] { return path.listing_read(directory, offset, size); });
  return body ? nb::object(nb::bytes(body->data(), body->size())) : nb::none();
}

nb::object written_tuple(const std::optional<braidfs::client::Written>& written) {
  if (!written) return nb::none();
  return nb::make_tuple(written->size, written->mtime_ns, written->flags);
}

nb::tuple upcall(Datapath& path, uint32_t slot) {
  const auto found = unlocked([&] { return path.upcall(slot); });
  if (!found) throw nb::value_error("no upcall has this slot");
  return nb::make_tuple(found->unique, found->pid, found->opcode,
                        found->bits & braidfs::fuse::kUpcallShown, found->nodeid);
}

void answer(Datapath& path, uint32_t slot, int error, const nb::bytes& body) {
  checked(error >= 0 && error < 4096, "no such errno");
  checked(unlocked([&] { return path.answer(slot, error, view(body)); }), "no call has this slot");
}

void expire_names(Datapath& path, uint64_t parent, const std::vector<nb::bytes>& names) {
  std::vector<std::string_view> texts;
  for (const nb::bytes& name : names) texts.push_back(text(name));
  checked(unlocked([&] { return path.expire_names(parent, texts); }));
}

nb::list reap(Datapath& path, size_t count_max) {
  const auto reaped = unlocked([&] { return path.reap(count_max); });
  nb::list events;
  for (const auto& event : reaped) {
    events.append(nb::make_tuple(static_cast<int>(event.kind), event.token, event.ino, event.a,
                                 event.b, nb::bytes(event.payload.data(), event.payload.size())));
  }
  return events;
}

nb::dict counters(Datapath& path) {
  const auto all = unlocked([&] { return path.counters(); });
  nb::dict result;
  for (const auto& [name, value] : all) result[name.c_str()] = value;
  return result;
}

void bind_life_cycle(nb::class_<Datapath>& type) {
  type.def(nb::new_(&make_datapath), nb::kw_only(), "lane_count"_a, "max_write"_a,
           "dirty_bytes_max"_a, "dirty_bytes_per_inode_max"_a, "held_bytes_max"_a, "timeout_ms"_a,
           "busy_poll_us"_a, "session"_a)
      .def("mount", &mount, "mountpoint"_a, "source"_a, "options"_a, "read_only"_a)
      .def("attach", &attach, "fuse_fd"_a)
      .def("seal", &Datapath::seal)
      .def("leave_permissions", &Datapath::leave_permissions)
      .def("allow_idmap", &Datapath::allow_idmap)
      .def("use_rings", &Datapath::use_rings)
      .def(
          "inline_births", [](Datapath& path, uint32_t most) { path.core().inline_births(most); },
          "length_max"_a)
      .def("has_rings", &Datapath::has_rings)
      .def(
          "start",
          [](Datapath& path, uint64_t root_ino) {
            return checked(unlocked([&] { return path.start(root_ino); }), "/dev/fuse");
          },
          "root_ino"_a)
      .def("stop", &Datapath::stop, "deadline_ms"_a, ReleaseGil())
      .def("events_fd", &Datapath::events_fd)
      .def("reap", &reap, "count_max"_a,
           nb::sig("def reap(self, count_max: int) "
                   "-> list[tuple[int, int, int, int, int, bytes]]"))
      .def(
          "abort", [](Datapath& path) { return path.core().abort(); }, ReleaseGil())
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"));
}

void bind_cluster(nb::class_<Datapath>& type) {
  braidfs::bindings::bind_rdma(type);
  braidfs::bindings::bind_handover(type);
  braidfs::bindings::bind_commits(type);
  type.def(
          "node_put", [](Datapath& path, uint32_t node) { path.core().node_put(node); }, "node"_a,
          ReleaseGil())
      .def(
          "target_put",
          [](Datapath& path, uint32_t target, uint32_t node) {
            path.core().target_put(target, node);
          },
          "target"_a, "node"_a, ReleaseGil())
      .def(
          "target_state",
          [](Datapath& path, uint32_t target, bool up) { path.core().target_state(target, up); },
          "target"_a, "up"_a, ReleaseGil())
      .def("connection_put", &connection_put, "lane"_a, "node"_a, "fd"_a, "rdma"_a = 0,
           "tls"_a.none() = nb::none())
      .def("rdma_open", &rdma_open, "device"_a, "port"_a, "gid_index"_a, "memory_mib"_a)
      .def("rdma_offer", &rdma_offer, "rail"_a, "lane"_a,
           nb::sig("def rdma_offer(self, rail: int, lane: int) -> tuple[int, bytes]"))
      .def(
          "connection_failed",
          [](Datapath& path, uint32_t lane, uint32_t node) {
            checked(unlocked([&] { return path.core().connection_failed(lane, node); }),
                    "no such lane");
          },
          "lane"_a, "node"_a)
      .def(
          "memory_rest",
          [](Datapath& path, uint64_t piece_bytes, uint64_t read_bytes, bool is_short) {
            path.core().memory().squeeze(is_short);
            if (is_short) path.core().memory_is_short();
            path.core().memory().rest({.pieces = piece_bytes, .reads = read_bytes});
          },
          "piece_bytes"_a, "read_bytes"_a, "short"_a, ReleaseGil())
      .def("session_put", &Datapath::session_put, "session"_a);
}

void bind_tables(nb::class_<Datapath>& type) {
  type.def("cache_open", &cache_open, "directory"_a, "bytes_max"_a, "cluster"_a,
           "passthrough"_a = false)
      .def("inode_put", &inode_put, "attributes"_a, "layout"_a, "capability"_a)
      .def("inode_resize", &inode_resize, "attributes"_a, "layout"_a, "capability"_a)
      .def(
          "view_put",
          [](Datapath& path, uint64_t ino, const nb::bytes& layout, const nb::bytes& capability) {
            return unlocked(
                [&] { return path.core().view_put(ino, view(layout), view(capability)); });
          },
          "ino"_a, "layout"_a, "capability"_a)
      .def("attributes_put", &attributes_put, "attributes"_a, "valid_ms"_a, "leased"_a)
      .def("attributes_put_rows", &attributes_put_rows, "attributes"_a, "wanted"_a)
      .def(
          "attributes_drop", [](Datapath& path, uint64_t ino) { path.attributes().drop(ino); },
          "ino"_a)
      .def(
          "entries_lease",
          [](Datapath& path, uint64_t ino) {
            path.dentries().lease(ino, braidfs::names::DentryTable::Clock::now());
          },
          "ino"_a)
      .def(
          "entries_delegate",
          [](Datapath& path, uint64_t ino) { return path.dentries().delegate(ino); }, "ino"_a)
      .def(
          "entries_undelegate",
          [](Datapath& path, uint64_t ino) { path.dentries().undelegate(ino); }, "ino"_a)
      .def("entries_complete", &entries_complete, "ino"_a, "valid_ms"_a)
      .def("entries_extend", &entries_extend, "ino"_a, "valid_ms"_a)
      .def(
          "entries_drop",
          [](Datapath& path, uint64_t ino) {
            path.dentries().drop(ino, braidfs::names::DentryTable::Clock::now());
          },
          "ino"_a)
      .def(
          "entry_put",
          [](Datapath& path, uint64_t parent, const nb::bytes& name, uint64_t ino) {
            return path.dentries().put(parent, text(name), ino,
                                       braidfs::names::DentryTable::Clock::now());
          },
          "parent"_a, "name"_a, "ino"_a)
      .def("names_changes", [](Datapath& path) { return path.dentries().changes(); })
      .def("names_list", &names_list, "directory"_a, "names"_a, "inos"_a, "cookies"_a, "behind"_a,
           "end"_a, "asked"_a)
      .def(
          "listing_read", &listing_read, "directory"_a, "offset"_a, "size"_a,
          nb::sig("def listing_read(self, directory: int, offset: int, size: int) -> bytes | None"))
      .def(
          "entry_unsure",
          [](Datapath& path, uint64_t parent, const nb::bytes& name) {
            path.dentries().unsure(parent, text(name));
          },
          "parent"_a, "name"_a)
      .def(
          "entry_moves",
          [](Datapath& path, uint64_t parent, const nb::bytes& name, uint64_t new_parent,
             const nb::bytes& new_name) {
            return path.dentries().moves(parent, text(name), new_parent, text(new_name));
          },
          "parent"_a, "name"_a, "new_parent"_a, "new_name"_a)
      .def(
          "lease_until",
          [](Datapath& path, uint32_t left_ms) {
            path.lease_until(std::chrono::milliseconds(left_ms));
          },
          "left_ms"_a)
      .def(
          "lease_drop",
          [](Datapath& path, uint64_t token, const std::vector<uint64_t>& inos, uint32_t facets) {
            return unlocked([&] { return path.lease_drop(token, inos, facets); });
          },
          "token"_a, "inos"_a, "facets"_a)
      .def("leases_clear", [](Datapath& path) { path.leases_clear(); })
      .def(
          "inode_lease",
          [](Datapath& path, uint64_t ino, uint32_t flags, uint32_t passing) {
            return path.core().inode_lease(ino, flags, passing);
          },
          "ino"_a, "flags"_a, "passing"_a, ReleaseGil())
      .def(
          "inode_lost", [](Datapath& path, uint64_t ino) { return path.core().inode_lost(ino); },
          "ino"_a, ReleaseGil())
      .def("inodes_lost",
           [](Datapath& path) { return unlocked([&] { return path.core().inodes_lost(); }); })
      .def(
          "inode_asked",
          [](Datapath& path, uint64_t ino, int error) { path.core().inode_asked(ino, error); },
          "ino"_a, "error"_a, ReleaseGil())
      .def(
          "inode_drop", [](Datapath& path, uint64_t ino) { path.core().inode_drop(ino); }, "ino"_a,
          ReleaseGil())
      .def(
          "inode_keep", [](Datapath& path, uint64_t ino) { return path.core().inode_keep(ino); },
          "ino"_a, ReleaseGil())
      .def("open_ahead", &open_ahead, "parent"_a, "has_names"_a, "names"_a, "attributes"_a,
           "layouts"_a, "capabilities"_a, "wanted"_a)
      .def(
          "announced_limit",
          [](Datapath& path, uint64_t bytes_max) { path.core().announced_limit(bytes_max); },
          "bytes_max"_a)
      .def(
          "fetch_ahead", [](Datapath& path, bool on) { path.core().turn_fetch_ahead(on); }, "on"_a)
      .def(
          "open_fetch", [](Datapath& path, bool on) { path.core().open_fetch(on); }, "on"_a)
      .def(
          "stream_limit",
          [](Datapath& path, uint64_t bytes_max) { path.core().stream_limit(bytes_max); },
          "bytes_max"_a)
      .def("announce", &announce, "inos"_a, "replaces"_a)
      .def("child_drop", &Datapath::child_drop, "ino"_a, ReleaseGil())
      .def(
          "child_is_older",
          [](Datapath& path, uint64_t ino, uint64_t version) {
            return path.children().is_older(ino, version);
          },
          "ino"_a, "change_version"_a)
      .def(
          "children_of",
          [](Datapath& path, uint64_t parent) {
            return unlocked([&] { return path.children().of(parent); });
          },
          "parent"_a)
      .def("children_open",
           [](Datapath& path) { return unlocked([&] { return path.core().inodes_granted(); }); })
      .def(
          "children_pause", [](Datapath& path, bool paused) { path.core().pause_granted(paused); },
          "paused"_a)
      .def("children_counts", &children_counts,
           nb::sig("def children_counts(self) -> tuple[int, int, int]"))
      .def(
          "inode_unkeep",
          [](Datapath& path, uint64_t ino) { return path.core().inode_unkeep(ino); }, "ino"_a,
          ReleaseGil())
      .def(
          "inode_written",
          [](Datapath& path, uint64_t ino) {
            return written_tuple(unlocked([&] { return path.core().inode_written(ino); }));
          },
          "ino"_a, nb::sig("def inode_written(self, ino: int) -> tuple[int, int, int] | None"))
      .def(
          "set_ids_put",
          [](Datapath& path, uint64_t ino, uint32_t mode, uint32_t gid) {
            path.core().set_ids_put(ino, mode, gid);
          },
          "ino"_a, "mode"_a, "gid"_a, ReleaseGil())
      .def(
          "inode_take",
          [](Datapath& path, uint64_t ino) {
            return written_tuple(unlocked([&] { return path.core().inode_take(ino); }));
          },
          "ino"_a, nb::sig("def inode_take(self, ino: int) -> tuple[int, int, int] | None"))
      .def(
          "handle_put",
          [](Datapath& path, uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
            checked(unlocked([&] { return path.core().handle_put(fh, ino, open_flags, direct); }),
                    "the inode is not known, or too many handles");
          },
          "fh"_a, "ino"_a, "open_flags"_a, "direct"_a)
      .def(
          "drain",
          [](Datapath& path, uint64_t token, uint64_t ino, bool sync, bool commit) {
            path.core().drain(token, ino, sync, commit);
          },
          "token"_a, "ino"_a, "sync"_a, "commit"_a, ReleaseGil())
      .def(
          "barrier", [](Datapath& path, uint64_t token) { path.core().barrier(token); }, "token"_a,
          ReleaseGil())
      .def(
          "punch",
          [](Datapath& path, uint64_t token, uint64_t ino, uint64_t begin, uint64_t end) {
            checked(unlocked([&] { return path.core().punch(token, ino, begin, end); }),
                    "the inode is not known, or not a range");
          },
          "token"_a, "ino"_a, "begin"_a, "end"_a)
      .def(
          "seek",
          [](Datapath& path, uint64_t token, uint64_t ino, uint64_t start, bool hole) {
            checked(unlocked([&] { return path.core().seek(token, ino, start, hole); }),
                    "the inode is not known, or not an offset");
          },
          "token"_a, "ino"_a, "start"_a, "hole"_a)
      .def(
          "copy",
          [](Datapath& path, uint64_t token, uint64_t source, uint64_t source_begin, uint64_t sink,
             uint64_t sink_begin, uint64_t length, bool only_reach) {
            checked(unlocked([&] {
                      return path.core().copy(token, {source, source_begin}, {sink, sink_begin},
                                              length, only_reach);
                    }),
                    "an inode is not known, or these are no whole blocks");
          },
          "token"_a, "source"_a, "source_begin"_a, "sink"_a, "sink_begin"_a, "length"_a,
          "only_reach"_a)
      .def(
          "size_limit_put",
          [](Datapath& path, uint64_t ino, int64_t limit) {
            path.core().size_limit_put(
                ino, limit < 0 ? braidfs::client::Inode::kUnlimited : static_cast<uint64_t>(limit));
          },
          "ino"_a, "limit"_a);
}

void bind_requests(nb::class_<Datapath>& type) {
  type.def("upcall", &upcall, "slot"_a,
           nb::sig("def upcall(self, slot: int) -> tuple[int, int, int, int, int]"))
      .def("answer", &answer, "slot"_a, "error"_a, "body"_a)
      .def(
          "locked",
          [](Datapath& path, uint64_t ino, bool has_locks) { path.locked(ino, has_locks); },
          "ino"_a, "has_locks"_a)
      .def(
          "invalidate_inode",
          [](Datapath& path, uint64_t ino, int64_t offset, int64_t length) {
            checked(unlocked([&] { return path.invalidate_inode(ino, offset, length); }));
          },
          "ino"_a, "offset"_a, "length"_a)
      .def("expire_names", &expire_names, "parent"_a, "names"_a);
}

}  // namespace

void bind_client(nb::module_& module) {
  nb::class_<Datapath> type(module, "Datapath", "The data plane of one mounted client.");
  bind_life_cycle(type);
  bind_cluster(type);
  bind_tables(type);
  braidfs::bindings::bind_changes(type);
  bind_requests(type);
}
