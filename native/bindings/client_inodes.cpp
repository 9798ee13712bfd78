// The port of inodes: open files, their handles, and the leases on their bytes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
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

struct LossRow {
  uint64_t ino = 0;
  bool is_written = false;
};

nb::list all_lost(Datapath& path) {
  nb::list rows;
  for (const auto& [ino, is_written] : unlocked([&] { return path.core().inodes_lost(); }))
    rows.append(LossRow{ino, is_written});
  return rows;
}

nb::object written_row(const std::optional<client::Written>& written) {
  return written ? nb::cast(*written) : nb::none();
}

void bind_layouts_and_leases(PortClass<InodesPort>& type) {
  type.def("put", &inode_put, "attributes"_a, "layout"_a, "capability"_a,
           "An inode with its layout and capability, before a handle of it. Raises ValueError.")
      .def(
          "view_put",
          [](Datapath& path, uint64_t ino, const nb::bytes& layout, const nb::bytes& capability) {
            return unlocked(
                [&] { return path.core().view_put(ino, view(layout), view(capability)); });
          },
          "ino"_a, "layout"_a, "capability"_a,
          "Where the bytes of an inode are, and nothing else of it. False: it is unknown, or has a "
          "younger view.")
      .def("resize", &inode_resize, "attributes"_a, "layout"_a, "capability"_a,
           "As put(), after a SETATTR of the size: this size counts. Raises ValueError.")
      .def(
          "lease",
          [](Datapath& path, uint64_t ino, uint32_t flags, uint32_t recalling) {
            return path.core().inode_lease(ino, flags, recalling);
          },
          "ino"_a, "flags"_a, "recalling"_a, ReleaseGil(),
          "LEASE_* held on the inode, and those that are recalled but not returned. True: READs or "
          "WRITEs went on under a recalled one since the last call, or DATA is gone and written "
          "bytes are still on their way: drain() them before the return.")
      .def(
          "lost", [](Datapath& path, uint64_t ino) { return path.core().inode_lost(ino); }, "ino"_a,
          ReleaseGil(),
          "The session was evicted: what was not committed is dropped. True: there was some, and "
          "handles learn of it (EIO).")
      .def("all_lost", &all_lost, nb::sig("def all_lost(self) -> list[LossRow]"),
           "As lost(), of every inode.")
      .def(
          "asked",
          [](Datapath& path, uint64_t ino, int error) { path.core().inode_asked(ino, error); },
          "ino"_a, "error"_a, ReleaseGil(),
          "Answers an ASK event, after put() and lease(). error: an errno, or 0.")
      .def(
          "drop", [](Datapath& path, uint64_t ino) { path.core().inode_drop(ino); }, "ino"_a,
          ReleaseGil(), "Forgets an inode that has no open handles and nothing dirty.");
}

void bind_local_opens_and_written(PortClass<InodesPort>& type) {
  type.def(
          "keep", [](Datapath& path, uint64_t ino) { return path.core().inode_keep(ino); }, "ino"_a,
          ReleaseGil(),
          "Lanes answer OPEN for reading while its bytes are leased (decision 0017). False: "
          "unknown inode.")
      .def(
          "unkeep", [](Datapath& path, uint64_t ino) { return path.core().inode_unkeep(ino); },
          "ino"_a, ReleaseGil(),
          "Lanes open it no more. Returns how many handles that they made are open; their RELEASEs "
          "are reported.")
      .def(
          "written",
          [](Datapath& path, uint64_t ino) {
            return written_row(unlocked([&] { return path.core().inode_written(ino); }));
          },
          "ino"_a, nb::sig("def written(self, ino: int) -> WrittenRow | None"),
          "What is not committed yet; None: nothing.")
      .def(
          "set_ids_put",
          [](Datapath& path, uint64_t ino, uint32_t mode, uint32_t gid) {
            path.core().set_ids_put(ino, mode, gid);
          },
          "ino"_a, "mode"_a, "gid"_a, ReleaseGil(),
          "The kernel may believe in these set-id bits: a direct WRITE that takes them away has it "
          "forget them.")
      .def(
          "take",
          [](Datapath& path, uint64_t ino) {
            return written_row(unlocked([&] { return path.core().inode_take(ino); }));
          },
          "ino"_a, nb::sig("def take(self, ino: int) -> WrittenRow | None"),
          "As written(), and marks it as committed.");
}

void bind_replicas(PortClass<InodesPort>& type) {
  type.def(
      "closed_unsynced",
      [](Datapath& path, uint64_t ino) { return path.core().closed_unsynced(ino); }, "ino"_a,
      ReleaseGil(),
      "A file was closed. True: it is replicated, and not all that was written is known to be "
      "durable; a SYNCED event follows when it is.");
}

void bind_handles(PortClass<InodesPort>& type) {
  type.def(
          "handle_put",
          [](Datapath& path, uint64_t fh, uint64_t ino, uint32_t open_flags, bool direct) {
            checked(unlocked([&] { return path.core().handle_put(fh, ino, open_flags, direct); }),
                    "the inode is not known, or too many handles");
          },
          "fh"_a, "ino"_a, "open_flags"_a, "direct"_a,
          "A handle of a known inode. direct: opened with FOPEN_DIRECT_IO. Raises ValueError.")
      .def(
          "size_limit_put",
          [](Datapath& path, uint64_t ino, int64_t limit) {
            path.core().size_limit_put(
                ino, limit < 0 ? client::Inode::kUnlimited : static_cast<uint64_t>(limit));
          },
          "ino"_a, "limit"_a, "A WRITE beyond this size asks first (ASK event); -1: no limit.")
      .def(
          "locked",
          [](Datapath& path, uint64_t ino, bool has_locks) { path.locked(ino, has_locks); },
          "ino"_a, "has_locks"_a,
          "This client has locks on the inode, or has them no more: its FLUSHes become CALLs, its "
          "RELEASEs are reported.")
      .def(
          "failed", [](Datapath& path, uint64_t ino) { return path.core().inode_failed(ino); },
          "ino"_a, "A former process took along what was written: handles learn of it (EIO).")
      .def(
          "commits",
          [](Datapath& path, uint64_t ino) {
            return unlocked([&] { return path.core().inode_commits(ino); });
          },
          "ino"_a, "Whether a COMMIT event is not answered yet.");
}

}  // namespace

void bind_inodes(nb::module_& module) {
  nb::class_<client::Written>(module, "WrittenRow",
                              "What was written and is not committed; flags: COMMIT_*.")
      .def_ro("size", &client::Written::size)
      .def_ro("mtime_ns", &client::Written::mtime_ns)
      .def_ro("flags", &client::Written::flags);
  nb::class_<LossRow>(module, "LossRow",
                      "What an inode has lost: written bytes, or that it is durable.")
      .def_ro("ino", &LossRow::ino)
      .def_ro("is_written", &LossRow::is_written);
  PortClass<InodesPort> type(module, "InodesPort",
                             "Open files, their handles, and the leases on their bytes.");
  bind_layouts_and_leases(type);
  bind_local_opens_and_written(type);
  bind_replicas(type);
  bind_handles(type);
}

}  // namespace braidfs::bindings
