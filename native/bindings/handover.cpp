#include "handover.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>
#include <vector>

#include "calls.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace braidfs::bindings {

namespace {

using client::Datapath;

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
    rows.append(
        nb::make_tuple(handle->fh, handle->inode->ino(), handle->open_flags, handle->direct));
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

}  // namespace

void bind_handover(nb::class_<Datapath>& type) {
  type.def(
          "pause",
          [](Datapath& path, bool paused) { return unlocked([&] { return path.pause(paused); }); },
          "paused"_a)
      .def("unanswered", [](Datapath& path) { return path.unanswered(); })
      .def("hand_over", &hand_over, nb::sig("def hand_over(self) -> tuple[list[int], bytes]"))
      .def("share", &share, nb::sig("def share(self) -> tuple[list[int], bytes]"))
      .def("record_make", [](Datapath& path) { return checked(path.core().record().make()); })
      .def(
          "directory_opened",
          [](Datapath& path, uint64_t fh, uint64_t ino) {
            path.core().record().directory_opened(fh, ino);
          },
          "fh"_a, "ino"_a)
      .def(
          "directory_closed",
          [](Datapath& path, uint64_t fh) { path.core().record().directory_closed(fh); }, "fh"_a)
      .def(
          "inode_failed",
          [](Datapath& path, uint64_t ino) { return path.core().inode_failed(ino); }, "ino"_a)
      .def("take_over", &take_over, "fds"_a, "agreed"_a, "first_handle"_a)
      .def("backings", &backings, nb::sig("def backings(self) -> list[tuple[int, int, int]]"))
      .def("backings_put", &backings_put, "backings"_a, "handles"_a)
      .def("handles", &handles, nb::sig("def handles(self) -> list[tuple[int, int, int, bool]]"));
}

}  // namespace braidfs::bindings
