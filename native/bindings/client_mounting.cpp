// The port of the mount: its life, and its hand-over to another process
// (docs/decisions/0032-restart.md, 0034-survival.md).
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calls.h"
#include "ports.h"

namespace braidfs::bindings {

namespace nb = nanobind;
using nb::literals::operator""_a;
using client::Datapath;
using Backing = client::Passthrough::Backing;

namespace {

struct HandleRow {
  uint64_t fh = 0;
  uint64_t ino = 0;
  uint32_t open_flags = 0;
  bool direct = false;
};

struct ConnectionRow {
  nb::list fds;
  nb::bytes agreed;
};

void mount(Datapath& path, const std::string& mountpoint, const std::string& source,
           const std::string& options, bool read_only) {
  const int mounted = unlocked([&] {
    return path.mount({mountpoint, source, options, read_only});
  });
  checked(mounted, mountpoint.c_str());
}

void attach(Datapath& path, int fuse_fd) {
  checked(fuse_fd >= 0, "fuse_fd is negative");
  checked(path.attach(net::UniqueFd(fuse_fd)), "/dev/fuse");
}

nb::dict counters(Datapath& path) {
  const auto all = unlocked([&] { return path.counters(); });
  nb::dict result;
  for (const auto& [name, value] : all) result[name.c_str()] = value;
  return result;
}

ConnectionRow connection_row(fuse::FuseSession::Handed& handed) {
  nb::list fds;
  for (auto& fd : handed.fds) fds.append(fd.release());
  return {fds, nb::bytes(&handed.agreed, sizeof handed.agreed)};
}

ConnectionRow hand_over(Datapath& path) {
  fuse::FuseSession::Handed handed;
  checked(unlocked([&] { return path.hand_over(handed); }));
  return connection_row(handed);
}

ConnectionRow share(Datapath& path) {
  fuse::FuseSession::Handed handed;
  checked(unlocked([&] { return path.share(handed); }));
  return connection_row(handed);
}

void take_over(Datapath& path, const std::vector<int>& fds, const nb::bytes& agreed,
               uint64_t first_handle) {
  fuse::FuseSession::Handed handed;
  for (const int fd : fds) handed.fds.emplace_back(fd);
  checked(agreed.size() == sizeof handed.agreed, "not what was agreed");
  std::memcpy(&handed.agreed, agreed.data(), sizeof handed.agreed);
  checked(unlocked([&] { return path.take_over(std::move(handed), first_handle); }));
}

nb::list handles(Datapath& path) {
  nb::list rows;
  for (const auto& handle : path.core().handles()) {
    rows.append(HandleRow{handle->fh, handle->inode->ino(), handle->open_flags, handle->direct});
  }
  return rows;
}

nb::list backings(Datapath& path) {
  nb::list rows;
  client::Passthrough* const passthrough = path.core().passthrough();
  if (passthrough == nullptr) return rows;
  for (const Backing& row : passthrough->backings()) rows.append(row);
  return rows;
}

void backings_put(Datapath& path, const nb::sequence& backings, const nb::sequence& handles) {
  std::vector<Backing> rows;
  for (const nb::handle row : backings) {
    rows.push_back({field_of<uint64_t>(row, "ino"), field_of<uint32_t>(row, "id"),
                    field_of<uint64_t>(row, "stamp")});
  }
  std::vector<std::pair<uint64_t, uint64_t>> inodes;
  for (const nb::handle row : handles) {
    inodes.emplace_back(field_of<uint64_t>(row, "fh"), field_of<uint64_t>(row, "ino"));
  }
  if (path.core().passthrough() == nullptr && !rows.empty())
    path.use_passthrough();  // its cache is lost
  if (client::Passthrough* const passthrough = path.core().passthrough())
    passthrough->adopt(rows, inodes);
}

void bind_mount_life(PortClass<MountingPort>& type) {
  type.def("mount", &mount, "mountpoint"_a, "source"_a, "options"_a, "read_only"_a,
           "Mounts by mount(2). Raises OSError.")
      .def("attach", &attach, "fuse_fd"_a,
           "Takes over a mounted /dev/fuse descriptor (of fusermount3), which native then owns. "
           "Raises OSError, ValueError.")
      .def("seal", &Datapath::seal,
           "Before start(): the tree is sealed and mounted read-only (decision 0033).")
      .def("leave_permissions", &Datapath::leave_permissions,
           "Before mount(): the kernel leaves permissions to the metaserver.")
      .def("allow_idmap", &Datapath::allow_idmap, "Before start(): mounts may be idmapped.")
      .def(
          "start",
          [](Datapath& path, uint64_t root_ino) {
            return checked(unlocked([&] { return path.start(root_ino); }), "/dev/fuse");
          },
          "root_ino"_a,
          "Answers INIT and starts the lanes. Returns the descriptor that pyfuse3 mounts as "
          "/dev/fd/N; Python owns it. Raises OSError.")
      .def("stop", &Datapath::stop, "deadline_ms"_a, ReleaseGil(),
           "Drains for at most deadline_ms, then ends the threads.")
      .def(
          "abort", [](Datapath& path) { return path.core().abort(); }, ReleaseGil(),
          "Fails every request that waits now. Returns how many did.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Counters of the lanes, by the names of docs/METRICS.md.")
      .def(
          "pause",
          [](Datapath& path, bool paused) { return unlocked([&] { return path.pause(paused); }); },
          "paused"_a,
          "Lanes read nothing more from the kernel, or go on. False: not all of them in time.")
      .def(
          "unanswered", [](Datapath& path) { return path.unanswered(); },
          "How many requests were read from the kernel and are not answered.");
}

void bind_hand_over(PortClass<MountingPort>& type) {
  type.def("hand_over", &hand_over,
           "The kernel's connection; its descriptors survive exec(2). Answers go nowhere "
           "afterwards. Raises OSError.")
      .def("share", &share, "As hand_over(), for a keeper: this process goes on. Raises OSError.")
      .def(
          "record_make", [](Datapath& path) { return checked(path.core().record().make()); },
          "Makes the record of open files that outlives this process. Returns its descriptor. "
          "Raises OSError.")
      .def(
          "directory_opened",
          [](Datapath& path, uint64_t fh, uint64_t ino) {
            path.core().record().directory_opened(fh, ino);
          },
          "fh"_a, "ino"_a, "Notes an open directory in that record.")
      .def(
          "directory_closed",
          [](Datapath& path, uint64_t fh) { path.core().record().directory_closed(fh); }, "fh"_a,
          "Removes a directory from that record.")
      .def("take_over", &take_over, "fds"_a, "agreed"_a, "first_handle"_a,
           "In place of mount(): goes on with the mount of another process. start() has the kernel "
           "send again what was left unanswered. Raises OSError, ValueError.")
      .def("backings", &backings, nb::sig("def backings(self) -> list[BackingRow]"),
           "Files that the kernel reads by itself (decision 0041).")
      .def("backings_put", &backings_put, "backings"_a, "handles"_a,
           nb::sig("def backings_put(self, backings: collections.abc.Sequence[BackingRow], "
                   "handles: collections.abc.Sequence[HandleRow]) -> None"),
           "Before start(): the backings of the former process, and every handle that the kernel "
           "has.")
      .def("handles", &handles, nb::sig("def handles(self) -> list[HandleRow]"),
           "All open handles.");
}

}  // namespace

void bind_mounting(nb::module_& module) {
  nb::class_<HandleRow>(module, "HandleRow", "An open handle; direct: opened with FOPEN_DIRECT_IO.")
      .def_ro("fh", &HandleRow::fh)
      .def_ro("ino", &HandleRow::ino)
      .def_ro("open_flags", &HandleRow::open_flags)
      .def_ro("direct", &HandleRow::direct);
  nb::class_<ConnectionRow>(
      module, "ConnectionRow",
      "The connection to the kernel; fds: of /dev/fuse, the connection's first; agreed: what was "
      "negotiated at INIT.")
      .def_ro("fds", &ConnectionRow::fds, nb::for_getter(nb::sig("def fds(self) -> list[int]")))
      .def_ro("agreed", &ConnectionRow::agreed);
  nb::class_<Backing>(
      module, "BackingRow",
      "The kernel's number (id) of the file that it reads for an inode; stamp: of its bytes.")
      .def_ro("ino", &Backing::ino)
      .def_ro("id", &Backing::id)
      .def_ro("stamp", &Backing::stamp);
  PortClass<MountingPort> type(module, "MountingPort",
                               "The life of the mount, and its hand-over to another process.");
  bind_mount_life(type);
  bind_hand_over(type);
}

}  // namespace braidfs::bindings
