// What lanes changed themselves in delegated directories, for Python. Only translation, as in
// client.cpp.
#include "client_changes.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fcntl.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace braidfs::bindings {

namespace {

using client::Datapath;

// (ino, layout, capability) for each.
void slots_put(Datapath& path,
               const std::vector<std::tuple<uint64_t, nb::bytes, nb::bytes>>& slots) {
  const auto text_of = [](const nb::bytes& bytes) { return std::string(text(bytes)); };
  std::vector<names::BirthSlot> taken;
  for (const auto& [ino, layout, capability] : slots) {
    taken.push_back({ino, text_of(layout), text_of(capability)});
  }
  checked(path.births().slots_put(std::move(taken)), "too many slots");
}

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::tuple tuple_of(const names::Birth& birth) {
  const auto& since = birth.since;
  const bool writable = since.is_open && (birth.open_flags & O_ACCMODE) != O_RDONLY;
  return nb::make_tuple(
      nb::make_tuple(birth.ino, birth.parent, bytes_of(birth.name), birth.mode, birth.uid,
                     birth.gid, birth.time_ns, bytes_of(birth.layout), writable, since.changes,
                     since.size, since.mtime_ns, since.is_open),
      birth.fh, bytes_of(since.inline_bytes));
}

nb::tuple tuple_of(const names::Removal& removal) {
  return nb::make_tuple(removal.parent, bytes_of(removal.name), removal.ino, removal.time_ns,
                        nb::bytes(removal.record.data(), removal.record.size()));
}

nb::tuple tuple_of(const names::Setting& setting) {
  return nb::make_tuple(setting.ino, setting.valid, setting.mode, setting.uid, setting.gid,
                        setting.atime_ns, setting.mtime_ns, setting.ctime_ns, setting.written_ns,
                        nb::bytes(setting.record.data(), setting.record.size()));
}

nb::tuple tuple_of(const names::Move& move) {
  const auto bytes = [](const auto& record) { return nb::bytes(record.data(), record.size()); };
  return nb::make_tuple(move.parent, bytes_of(move.name), bytes_of(move.new_name), move.ino,
                        move.replaced, move.time_ns, bytes(move.record),
                        bytes(move.replaced_record));
}

// Runs: births, then removals and settings, whose order among themselves is of no matter (a file of
// which a name goes is not open), then moves.
nb::list changes_take(Datapath& path, bool spare_open) {
  constexpr std::array<size_t, 4> kRank = {0, 1, 1,
                                           2};  // of Birth, Removal, Setting, Move in a run
  nb::list runs;
  std::array<nb::list, kRank.size()> run;
  size_t rank = 0;
  const auto end_run = [&] {
    runs.append(nb::make_tuple(run[0], run[1], run[2], run[3]));
    run = {};
    rank = 0;
  };
  const auto changes = unlocked([&] { return path.changes_take(spare_open); });
  for (const auto& change : changes) {
    if (kRank[change.index()] < rank) end_run();
    rank = kRank[change.index()];
    std::visit([&](const auto& one) { run[change.index()].append(tuple_of(one)); }, change);
  }
  if (!changes.empty()) end_run();
  return runs;
}

}  // namespace

void bind_changes(nb::class_<Datapath>& type) {
  type.def("slots_put", &slots_put, "slots"_a)
      .def(
          "births_refuse",
          [](Datapath& path, std::vector<uint32_t> uids, std::vector<uint32_t> gids) {
            path.births().refuse(std::move(uids), std::move(gids));
            path.dentries().owners_told();
          },
          "uids"_a, "gids"_a)
      .def(
          "births_share",
          [](Datapath& path, uint64_t directory, uint64_t files, uint64_t size_limit) {
            path.births().share(directory, files, size_limit);
          },
          "directory"_a, "files"_a, "size_limit"_a)
      .def(
          "births_unshare",
          [](Datapath& path, uint64_t directory) { path.births().unshare(directory); },
          "directory"_a)
      .def("slots_clear", [](Datapath& path) { path.births().slots_clear(); })
      .def("slots_left", [](Datapath& path) { return path.births().slots(); })
      .def("changes_left", [](Datapath& path) { return path.births().any(); })
      .def("changes_take", &changes_take, "spare_open"_a,
           nb::sig("def changes_take(self, spare_open: bool) -> list[tuple[list[tuple[tuple[int, "
                   "int, bytes, int, int, "
                   "int, int, bytes, bool, int, int, int, bool], int, bytes]], list[tuple[int, "
                   "bytes, int, int, bytes]], "
                   "list[tuple[int, int, int, int, int, int, int, int, int, bytes]], "
                   "list[tuple[int, bytes, bytes, int, int, int, bytes, bytes]]]]"))
      .def(
          "changes_told", [](Datapath& path, uint64_t count) { path.births().changes_told(count); },
          "count"_a)
      .def(
          "births_told",
          [](Datapath& path, const std::vector<uint64_t>& inos) {
            unlocked([&] { path.core().births_told(inos); });
          },
          "inos"_a);
}

}  // namespace braidfs::bindings
