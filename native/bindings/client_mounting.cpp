// The port of the mount: its life, and its hand-over to another process
// (docs/decisions/0032-restart.md, 0034-survival.md).
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.h"
#include "ports.h"

namespace braidfs::bindings {

namespace nb = nanobind;
using nb::literals::operator""_a;
using client::Datapath;

namespace {

struct HandleRow {
  uint64_t fh = 0;
  uint64_t ino = 0;
  uint32_t open_flags = 0;
  bool direct = false;
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

// Descriptors, the connection's first, and what was agreed with the kernel.
nb::tuple handed_tuple(fuse::FuseSession::Handed& handed) {
  nb::list fds;
  for (auto& fd : handed.fds) fds.append(fd.release());
  return nb::make_tuple(fds, nb::bytes(&handed.agreed, sizeof handed.agreed));
}

nb::tuple hand_over(Datapath& path) {
  fuse::FuseSession::Handed handed;
  checked(unlocked([&] { return path.hand_over(handed); }));
  return handed_tuple(handed);
}

nb::tuple share(Datapath& path) {
  fuse::FuseSession::Handed handed;
  checked(unlocked([&] { return path.share(handed); }));
  return handed_tuple(handed);
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
  for (const auto& row : passthrough->backings()) {
    rows.append(nb::make_tuple(row.ino, row.id, row.stamp));
  }
  return rows;
}

void backings_put(Datapath& path,
                  const std::vector<std::tuple<uint64_t, uint32_t, uint64_t>>& backings,
                  const std::vector<std::pair<uint64_t, uint64_t>>& handles) {
  std::vector<client::Passthrough::Backing> rows;
  for (const auto& [ino, id, stamp] : backings) rows.push_back({ino, id, stamp});
  if (path.core().passthrough() == nullptr && !rows.empty())
    path.use_passthrough();  // its cache is lost
  if (client::Passthrough* const passthrough = path.core().passthrough())
    passthrough->adopt(rows, handles);
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
  type.def("hand_over", &hand_over, nb::sig("def hand_over(self) -> tuple[list[int], bytes]"),
           "The descriptors of the connection, which survive exec(2), and what was agreed at INIT. "
           "Answers go nowhere afterwards. Raises OSError.")
      .def("share", &share, nb::sig("def share(self) -> tuple[list[int], bytes]"),
           "As hand_over(), for a keeper: this process goes on. Raises OSError.")
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
      .def("backings", &backings, nb::sig("def backings(self) -> list[tuple[int, int, int]]"),
           "Files that the kernel reads by itself: inode, id, stamp (decision 0041).")
      .def("backings_put", &backings_put, "backings"_a, "handles"_a,
           "Before start(): the backings of the former process, and every handle with its inode "
           "that the kernel has.")
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
  PortClass<MountingPort> type(module, "MountingPort",
                               "The life of the mount, and its hand-over to another process.");
  bind_mount_life(type);
  bind_hand_over(type);
}

}  // namespace braidfs::bindings
