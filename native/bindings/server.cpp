// ChunkServer for Python (docs/INTERFACES.md 3.2). Only translation: arguments to the types of
// server/chunk_server.h, its results to tuples, its refusals to ValueError and OSError. No call
// back into Python; the GIL is let go in every call that takes a lock or waits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "rdma.h"
#include "server/chunk_server.h"
#include "server/low_priority.h"
#include "tls.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using braidfs::Status;
using braidfs::server::ChunkServer;
using braidfs::server::IoEngine;
using braidfs::server::Purpose;
using braidfs::store::Uuid;

[[noreturn]] void raise_os_error(int error, const std::string& message) {
  nb::object arguments = nb::make_tuple(error, message.empty() ? std::strerror(error) : message);
  PyErr_SetObject(PyExc_OSError, arguments.ptr());
  throw nb::python_error();
}

[[noreturn]] void raise_status(Status status, const std::string& message) {
  if (status == Status::kEinval || status == Status::kCorrupt) {
    throw nb::value_error(message.c_str());
  }
  raise_os_error(braidfs::errno_of(status), message);
}

std::span<const std::byte> view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

nb::bytes to_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

Uuid to_uuid(const nb::bytes& bytes, const char* name) {
  Uuid uuid;
  if (bytes.size() != uuid.size()) {
    throw nb::value_error((std::string(name) + " must have 16 bytes").c_str());
  }
  std::memcpy(uuid.data(), bytes.data(), uuid.size());
  return uuid;
}

std::unique_ptr<ChunkServer> make_server(size_t lane_count, const std::string& io,
                                         uint32_t busy_poll_us, size_t target_count,
                                         uint64_t fetched_bytes_max, uint64_t buffer_bytes_max) {
  IoEngine engine = IoEngine::kAuto;
  if (io == "uring") {
    engine = IoEngine::kUring;
  } else if (io == "syscall") {
    engine = IoEngine::kSyscall;
  } else if (io != "auto") {
    throw nb::value_error("io is \"auto\", \"uring\" or \"syscall\"");
  }
  if (lane_count > ChunkServer::kLanesMax) throw nb::value_error("too many lanes");
  if (busy_poll_us > braidfs::net::EventLoop::kBusyPollUsMax)
    throw nb::value_error("busy_poll_us is too long");
  auto server = std::make_unique<ChunkServer>(
      braidfs::server::ServerConfig{.lane_count = lane_count,
                                    .target_count = target_count,
                                    .io = engine,
                                    .buffer_bytes_max = buffer_bytes_max,
                                    .busy_poll_us = busy_poll_us,
                                    .fetched_bytes_max = fetched_bytes_max});
  if (server->fault() != 0) raise_os_error(-server->fault(), "cannot start the data path");
  return server;
}

size_t target_open(ChunkServer& server, const std::string& path, const nb::bytes& cluster,
                   const nb::bytes& uuid, uint64_t capacity_bytes, bool create) {
  const braidfs::server::TargetConfig config{.path = path,
                                             .cluster = to_uuid(cluster, "cluster"),
                                             .uuid = to_uuid(uuid, "uuid"),
                                             .capacity_bytes = capacity_bytes,
                                             .create = create};
  braidfs::server::TargetOpened opened;
  {
    const nb::gil_scoped_release released;
    opened = server.target_open(config);
  }
  if (opened.status != Status::kOk) raise_status(opened.status, opened.message);
  return opened.index;
}

void target_assign(ChunkServer& server, size_t index, uint32_t target) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = server.target_assign(index, target);
  }
  if (status != Status::kOk) raise_status(status, "the target cannot get this id");
}

struct TargetRow {
  uint32_t target;
  nb::bytes uuid;
  uint64_t incarnation;
  uint64_t bytes_total;
  uint64_t bytes_free;
  uint64_t objects;
  uint64_t errors;
  uint64_t files_total;
  uint64_t files_free;
};

TargetRow target_info(ChunkServer& server, size_t index) {
  braidfs::store::StoreFigures figures;
  bool known = false;
  {
    const nb::gil_scoped_release released;
    known = server.target_figures(index, figures);
  }
  if (!known) throw nb::value_error("no such target");
  return {figures.target,      to_bytes(figures.uuid), figures.incarnation,
          figures.bytes_total, figures.bytes_free,     figures.objects,
          figures.errors,      figures.files_total,    figures.files_free};
}

void drop_names(ChunkServer& server, uint32_t target, const std::vector<uint64_t>& file_ids,
                const std::vector<uint32_t>& objects) {
  if (file_ids.size() != objects.size()) throw nb::value_error("the columns differ in length");
  std::vector<braidfs::store::ObjectId> names;
  names.reserve(file_ids.size());
  for (size_t index = 0; index < file_ids.size(); ++index) {
    names.push_back({file_ids[index], objects[index]});
  }
  bool taken = false;
  {
    const nb::gil_scoped_release released;
    taken = server.drop_names(target, names);
  }
  if (!taken) throw nb::value_error("there is no such target, or it has too many dropped names");
}

nb::list to_list(std::span<const uint64_t> numbers) {
  nb::list result;
  for (const uint64_t number : numbers) result.append(number);
  return result;
}

struct ExaminedRow {
  int status;
  uint64_t length;
  uint32_t epoch;
  uint32_t group;
  bool ended;
  bool records_lost;
  uint32_t records_renewed;
  uint64_t bytes_read;
  nb::bytes sums;
  nb::list damaged;
};

ExaminedRow examine(ChunkServer& server, uint32_t target, uint64_t file_id, uint32_t object,
                    uint32_t group, bool reads) {
  braidfs::store::Examined found;
  Status status;
  {
    const nb::gil_scoped_release released;
    const braidfs::server::LowPriority low;
    status = server.examine(target, {file_id, object}, group, reads, found);
  }
  return {static_cast<int>(status),
          found.length,
          found.epoch,
          found.group,
          found.ended,
          found.records_lost,
          found.records_renewed,
          found.bytes,
          to_bytes(std::as_bytes(std::span(found.sums))),
          to_list(found.damaged)};
}

nb::tuple mend(ChunkServer& server, uint32_t target, uint64_t file_id, uint32_t object,
               uint64_t block, const nb::bytes& bytes) {
  braidfs::store::Mended mended;
  Status status;
  {
    const std::span<const std::byte> read = view(bytes);
    const nb::gil_scoped_release released;
    status = server.mend(target, {file_id, object}, block, read, mended);
  }
  return nb::make_tuple(static_cast<int>(status), mended.mended, mended.left);
}

int rdma_open(ChunkServer& server, const std::string& device, uint8_t port, uint8_t gid_index,
              uint32_t memory_mib) {
  std::string reason;
  int rail = 0;
  {
    const nb::gil_scoped_release released;
    rail = server.rdma_open(braidfs::bindings::rdma_address(device, port, gid_index),
                            uint64_t{memory_mib} << 20, reason);
  }
  if (rail < 0) braidfs::bindings::raise_rdma_error(-rail, reason);
  return rail;
}

nb::tuple rdma_offer(ChunkServer& server, uint32_t rail, uint64_t session, uint64_t previous) {
  uint64_t token = 0;
  braidfs::rdma::Peer local;
  int error = 0;
  {
    const nb::gil_scoped_release released;
    error = server.rdma_offer(rail, session, previous, token, local);
  }
  const auto offer = braidfs::bindings::offer_row(error, token, local);
  return nb::make_tuple(offer.token, offer.description);
}

void adopt(ChunkServer& server, int fd, const std::string& purpose, uint64_t session,
           uint64_t connection, uint64_t previous, uint64_t rdma,
           braidfs::bindings::TlsHandle* tls) {
  if (fd < 0) throw nb::value_error("fd is negative");
  braidfs::net::Socket owned(braidfs::net::UniqueFd(fd), braidfs::bindings::take_tls(tls));
  if (purpose != "data" && purpose != "server") {
    throw nb::value_error("purpose is \"data\" or \"server\"");
  }
  const nb::gil_scoped_release released;
  server.adopt({.socket = std::move(owned),
                .purpose = purpose == "server" ? Purpose::kServer : Purpose::kData,
                .session = session,
                .connection = connection,
                .previous = previous},
               rdma);
}

nb::list reap(ChunkServer& server, size_t count_max) {
  nb::list events;
  for (const auto& event : server.events().reap(count_max)) {
    events.append(nb::make_tuple(static_cast<int>(event.kind), event.token, event.ino, event.a,
                                 event.b, nb::bytes(event.payload.data(), event.payload.size())));
  }
  return events;
}

nb::dict counters(ChunkServer& server) {
  std::map<std::string, uint64_t> sums;
  {
    const nb::gil_scoped_release released;
    sums = server.counters();
  }
  nb::dict result;
  for (const auto& [name, value] : sums) result[name.c_str()] = value;
  return result;
}

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

void bind_target_row(nb::module_& module) {
  nb::class_<TargetRow>(module, "TargetRow",
                        "What a target is and has; target 0: the metaserver has not numbered it; "
                        "files_total: inodes of its file system, 0 where bytes alone limit it; "
                        "errors: I/O errors and corrupt blocks since it was opened.")
      .def_ro("target", &TargetRow::target)
      .def_ro("uuid", &TargetRow::uuid)
      .def_ro("incarnation", &TargetRow::incarnation)
      .def_ro("bytes_total", &TargetRow::bytes_total)
      .def_ro("bytes_free", &TargetRow::bytes_free)
      .def_ro("objects", &TargetRow::objects)
      .def_ro("errors", &TargetRow::errors)
      .def_ro("files_total", &TargetRow::files_total)
      .def_ro("files_free", &TargetRow::files_free);
}

void bind_examined_row(nb::module_& module) {
  nb::class_<ExaminedRow>(module, "ExaminedRow",
                          "What a group of an object's blocks is on the device; status: 0, or why "
                          "it is not known; ended: the object has no such group or later one; "
                          "records_lost: with ended of the whole object; sums: of blocks that are "
                          "not zeros, for each its number and its recorded sum, both u64; damaged: "
                          "numbers of blocks.")
      .def_ro("status", &ExaminedRow::status)
      .def_ro("length", &ExaminedRow::length)
      .def_ro("epoch", &ExaminedRow::epoch)
      .def_ro("group", &ExaminedRow::group)
      .def_ro("ended", &ExaminedRow::ended)
      .def_ro("records_lost", &ExaminedRow::records_lost)
      .def_ro("records_renewed", &ExaminedRow::records_renewed)
      .def_ro("bytes_read", &ExaminedRow::bytes_read)
      .def_ro("sums", &ExaminedRow::sums)
      .def_ro("damaged", &ExaminedRow::damaged, nb::sig("def damaged(self) -> list[int]"));
}

void bind_targets(nb::class_<ChunkServer>& type) {
  type.def("target_open", &target_open, "path"_a, nb::kw_only(), "cluster"_a, "uuid"_a,
           "capacity_bytes"_a, "create"_a,
           "Opens a target, or makes it, also while the server serves. Returns its local index. "
           "Raises OSError, ValueError.")
      .def("target_assign", &target_assign, "index"_a, "target"_a,
           "The number from the metaserver, which the superblock keeps.")
      .def("target_info", &target_info, "index"_a,
           "What a target is and has. Raises ValueError if there is no such target.")
      .def("drop_names", &drop_names, "target"_a, "file_ids"_a, "objects"_a,
           "From now on no client is served for these names of objects. Raises ValueError if there "
           "is no such target, or if it has too many.")
      .def("target_retire", &ChunkServer::target_retire, "target"_a,
           "The target is part of the cluster no more: no client is served for any of its objects. "
           "Returns False if there is no such target.");
}

void bind_scrub(nb::class_<ChunkServer>& type) {
  type.def("has_clients", &ChunkServer::has_clients, "target"_a,
           "Whether clients have asked for something of the target a moment ago.")
      .def("examine", &examine, "target"_a, "file_id"_a, "object"_a, "group"_a, nb::kw_only(),
           "reads"_a,
           "Compares the bytes of the object's first group with data from this one on with their "
           "sums, past the page cache; or only says what the sums are. Blocks.")
      .def("mend", &mend, "target"_a, "file_id"_a, "object"_a, "block"_a, "bytes"_a,
           nb::sig("def mend(self, target: int, file_id: int, object: int, block: int, "
                   "bytes: bytes) -> tuple[int, int, int]"),
           "Writes these bytes to those of the blocks from this one on that are damaged and had "
           "these bytes. Returns the status, and how many blocks were mended, and how many are "
           "damaged still. Blocks.");
}

}  // namespace

void bind_copies(nb::module_& module);
void bind_copy_step(nb::class_<ChunkServer>& server);

void bind_server(nb::module_& module) {
  bind_target_row(module);
  bind_examined_row(module);
  bind_copies(module);
  nb::class_<ChunkServer> type(module, "ChunkServer", "The data plane of one storage server.");
  braidfs::bindings::bind_rdma(type);
  bind_targets(type);
  bind_scrub(type);
  bind_copy_step(type);
  type.def(nb::new_(&make_server), nb::kw_only(), "lane_count"_a, "io"_a, "busy_poll_us"_a = 0,
           "target_count"_a = 1, "fetched_bytes_max"_a = uint64_t{1} << 30,
           "buffer_bytes_max"_a = uint64_t{512} << 20)
      .def(
          "io_engine", [](ChunkServer& server) { return std::string(server.io_engine()); },
          "How it reads and writes: uring or syscall.")
      .def("start", &ChunkServer::start, ReleaseGil(), "Begins to serve.")
      .def("stop", &ChunkServer::stop, "deadline_ms"_a, ReleaseGil(),
           "Finishes, syncs everything and marks the targets clean.")
      .def(
          "capability_key",
          [](ChunkServer& server, const nb::bytes& key) { server.capability_key(view(key)); },
          "key"_a, "The key of capabilities, of 32 bytes.")
      .def(
          "sessions",
          [](ChunkServer& server, const std::vector<uint64_t>& live) { server.sessions(live); },
          "live"_a, ReleaseGil(),
          "The whole table of sessions; nothing is served before the first call.")
      .def("serve_until", &ChunkServer::serve_until, "deadline_ns"_a,
           "A time of CLOCK_BOOTTIME; after it clients get NOT_READY (section 8).")
      .def("fence", &ChunkServer::fence, "session"_a, ReleaseGil(),
           "Requests of this session are refused from now on.")
      .def("announce", &ChunkServer::announce, "session"_a, "connection"_a, "previous"_a,
           ReleaseGil(),
           "A client has proved itself, and from now on names this connection as replaced by its "
           "next one, whether it is adopted or not.")
      .def("adopt", &adopt, "fd"_a, nb::kw_only(), "purpose"_a, "session"_a, "connection"_a,
           "previous"_a, "rdma"_a = 0, "tls"_a.none() = nb::none(),
           "An authenticated connection; native owns the descriptor.")
      .def("connection_count", &ChunkServer::connection_count, "How many connections are open.")
      .def(
          "close_idle",
          [](ChunkServer& server, size_t count_max, uint32_t idle_ms) {
            server.close_idle(count_max, std::chrono::milliseconds(idle_ms));
          },
          "count_max"_a, "idle_ms"_a, ReleaseGil(),
          "Closes the connections that were idle for longest, at most count_max.")
      .def("rdma_open", &rdma_open, "device"_a, "port"_a, "gid_index"_a, "memory_mib"_a,
           "Opens an RDMA device. Returns the number of its rail. Raises OSError with a sentence.")
      .def("rdma_offer", &rdma_offer, "rail"_a, "session"_a, "previous"_a,
           nb::sig("def rdma_offer(self, rail: int, session: int, previous: int) "
                   "-> tuple[int, bytes]"),
           "A queue pair on the lane that adopt() will choose: its token and description. Raises "
           "OSError.")
      .def(
          "events_fd", [](ChunkServer& server) { return server.events().fd(); },
          "A descriptor that is readable while events wait.")
      .def("reap", &reap, "count_max"_a,
           nb::sig("def reap(self, count_max: int) "
                   "-> list[tuple[int, int, int, int, int, bytes]]"),
           "Events that wait: kind, token, ino, a, b, payload.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Counters, by the names of docs/METRICS.md.");
}
