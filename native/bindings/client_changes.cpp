// The port of changes: what lanes change themselves in delegated directories.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fcntl.h>

#include <array>
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

namespace {

struct CreationRow {
  uint64_t ino = 0;
  uint64_t parent = 0;
  nb::bytes name;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  int64_t time_ns = 0;
  nb::bytes layout;
  bool writable = false;
  uint32_t changes = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool is_open = false;
  uint64_t fh = 0;
  nb::bytes inline_bytes;
};

struct SlotRow {
  uint64_t ino = 0;
  nb::bytes layout;
  nb::bytes capability;
};

struct RemovalRow {
  uint64_t parent = 0;
  nb::bytes name;
  uint64_t ino = 0;
  int64_t time_ns = 0;
  nb::bytes record;
};

struct SettingRow {
  uint64_t ino = 0;
  uint32_t valid = 0;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  int64_t atime_ns = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  int64_t written_ns = 0;
  nb::bytes record;
};

struct MoveRow {
  uint64_t parent = 0;
  nb::bytes name;
  nb::bytes new_name;
  uint64_t ino = 0;
  uint64_t replaced = 0;
  int64_t time_ns = 0;
  nb::bytes record;
  nb::bytes replaced_record;
};

struct ChangeRun {
  nb::list creations;
  nb::list removals;
  nb::list settings;
  nb::list moves;
};

nb::bytes record_bytes(const record::Record& record) {
  return nb::bytes(record.data(), record.size());
}

nb::object row_of(const names::Birth& birth) {
  const auto& since = birth.since;
  const bool writable = since.is_open && (birth.open_flags & O_ACCMODE) != O_RDONLY;
  return nb::cast(CreationRow{birth.ino, birth.parent, bytes_of(birth.name), birth.mode, birth.uid,
                              birth.gid, birth.time_ns, bytes_of(birth.layout), writable,
                              since.changes, since.size, since.mtime_ns, since.is_open, birth.fh,
                              bytes_of(since.inline_bytes)});
}

nb::object row_of(const names::Removal& removal) {
  return nb::cast(RemovalRow{removal.parent, bytes_of(removal.name), removal.ino, removal.time_ns,
                             record_bytes(removal.record)});
}

nb::object row_of(const names::Setting& setting) {
  return nb::cast(SettingRow{setting.ino, setting.valid, setting.mode, setting.uid, setting.gid,
                             setting.atime_ns, setting.mtime_ns, setting.ctime_ns,
                             setting.written_ns, record_bytes(setting.record)});
}

nb::object row_of(const names::Move& move) {
  return nb::cast(MoveRow{move.parent, bytes_of(move.name), bytes_of(move.new_name), move.ino,
                          move.replaced, move.time_ns, record_bytes(move.record),
                          record_bytes(move.replaced_record)});
}

// Runs: creations, then removals and settings, whose order among themselves is of no matter (a file
// of which a name goes is not open), then moves.
nb::list changes_take(Datapath& path, bool spare_open) {
  constexpr std::array<size_t, 4> kRank = {0, 1, 1, 2};  // of Birth, Removal, Setting, Move
  nb::list runs;
  std::array<nb::list, kRank.size()> run;
  size_t rank = 0;
  const auto end_run = [&] {
    runs.append(ChangeRun{run[0], run[1], run[2], run[3]});
    run = {};
    rank = 0;
  };
  const auto changes = unlocked([&] { return path.changes_take(spare_open); });
  for (const auto& change : changes) {
    if (kRank[change.index()] < rank) end_run();
    rank = kRank[change.index()];
    std::visit([&](const auto& one) { run[change.index()].append(row_of(one)); }, change);
  }
  if (!changes.empty()) end_run();
  return runs;
}

void slots_put(Datapath& path, uint64_t pool, const nb::sequence& slots) {
  const auto text_of = [](nb::handle row, const char* name) {
    const auto bytes = field_of<nb::bytes>(row, name);
    return std::string(static_cast<const char*>(bytes.data()), bytes.size());
  };
  std::vector<names::BirthSlot> taken;
  for (const nb::handle row : slots) {
    taken.push_back(
        {field_of<uint64_t>(row, "ino"), text_of(row, "layout"), text_of(row, "capability")});
  }
  checked(path.journal().slots_put(pool, std::move(taken)), "too many slots");
}

void bind_rows(nb::module_& module) {
  nb::class_<CreationRow>(
      module, "CreationRow",
      "A new file that lanes made; fh: the handle that it is open by, if it is; "
      "inline_bytes: all of it, if that is to lie in its record.")
      .def_ro("ino", &CreationRow::ino)
      .def_ro("parent", &CreationRow::parent)
      .def_ro("name", &CreationRow::name)
      .def_ro("mode", &CreationRow::mode)
      .def_ro("uid", &CreationRow::uid)
      .def_ro("gid", &CreationRow::gid)
      .def_ro("time_ns", &CreationRow::time_ns)
      .def_ro("layout", &CreationRow::layout)
      .def_ro("writable", &CreationRow::writable)
      .def_ro("changes", &CreationRow::changes)
      .def_ro("size", &CreationRow::size)
      .def_ro("mtime_ns", &CreationRow::mtime_ns)
      .def_ro("is_open", &CreationRow::is_open)
      .def_ro("fh", &CreationRow::fh)
      .def_ro("inline_bytes", &CreationRow::inline_bytes);
  nb::class_<SlotRow>(module, "SlotRow", "An inode number that a new file may get.")
      .def_ro("ino", &SlotRow::ino)
      .def_ro("layout", &SlotRow::layout)
      .def_ro("capability", &SlotRow::capability);
  nb::class_<RemovalRow>(
      module, "RemovalRow",
      "A name that lanes took away; record: attributes of ino as they are since.")
      .def_ro("parent", &RemovalRow::parent)
      .def_ro("name", &RemovalRow::name)
      .def_ro("ino", &RemovalRow::ino)
      .def_ro("time_ns", &RemovalRow::time_ns)
      .def_ro("record", &RemovalRow::record);
  nb::class_<SettingRow>(
      module, "SettingRow",
      "Attributes that lanes set; record: as they are since, but for what was written.")
      .def_ro("ino", &SettingRow::ino)
      .def_ro("valid", &SettingRow::valid)
      .def_ro("mode", &SettingRow::mode)
      .def_ro("uid", &SettingRow::uid)
      .def_ro("gid", &SettingRow::gid)
      .def_ro("atime_ns", &SettingRow::atime_ns)
      .def_ro("mtime_ns", &SettingRow::mtime_ns)
      .def_ro("ctime_ns", &SettingRow::ctime_ns)
      .def_ro("written_ns", &SettingRow::written_ns)
      .def_ro("record", &SettingRow::record);
  nb::class_<MoveRow>(
      module, "MoveRow",
      "A name that lanes changed; record and replaced_record: attributes as they are since.")
      .def_ro("parent", &MoveRow::parent)
      .def_ro("name", &MoveRow::name)
      .def_ro("new_name", &MoveRow::new_name)
      .def_ro("ino", &MoveRow::ino)
      .def_ro("replaced", &MoveRow::replaced)
      .def_ro("time_ns", &MoveRow::time_ns)
      .def_ro("record", &MoveRow::record)
      .def_ro("replaced_record", &MoveRow::replaced_record);
  nb::class_<ChangeRun>(module, "ChangeRun",
                        "Creations, behind them removals and settings, then moves.")
      .def_ro("creations", &ChangeRun::creations,
              nb::for_getter(nb::sig("def creations(self) -> list[CreationRow]")))
      .def_ro("removals", &ChangeRun::removals,
              nb::for_getter(nb::sig("def removals(self) -> list[RemovalRow]")))
      .def_ro("settings", &ChangeRun::settings,
              nb::for_getter(nb::sig("def settings(self) -> list[SettingRow]")))
      .def_ro("moves", &ChangeRun::moves,
              nb::for_getter(nb::sig("def moves(self) -> list[MoveRow]")));
}

void bind_slots(PortClass<ChangesPort>& type) {
  type.def("slots_put", &slots_put, "pool"_a, "slots"_a,
           nb::sig("def slots_put(self, pool: int, slots: collections.abc.Sequence[SlotRow]) -> "
                   "None"),
           "Slots of a pool for new files; 0: of the cluster's default layout. Raises ValueError "
           "beyond 4096 in 16 pools.")
      .def(
          "slots_clear", [](Datapath& path) { path.journal().slots_clear(); },
          "The slots are void.")
      .def(
          "slots_drop",
          [](Datapath& path, uint64_t pool, uint64_t kept) {
            return path.journal().slots_drop(pool, kept);
          },
          "pool"_a, "kept"_a,
          "All slots of the pool but so many become void. Returns the inodes of these.")
      .def(
          "slots_left", [](Datapath& path, uint64_t pool) { return path.journal().slots(pool); },
          "pool"_a, "How many slots of the pool are unused.")
      .def(
          "pool_put",
          [](Datapath& path, uint64_t directory, uint64_t pool) {
            path.journal().pool_put(directory, pool);
          },
          "directory"_a, "pool"_a,
          "New files in a directory with one extended attribute, its layout, get slots of this "
          "pool; 0: such a directory gets its files by upcalls.");
}

void bind_delegation(PortClass<ChangesPort>& type) {
  type.def(
          "entries_delegate",
          [](Datapath& path, uint64_t ino) { return path.dentries().delegate(ino); }, "ino"_a,
          "Lanes may change names in a leased directory. False: it is not leased, or contended.")
      .def(
          "entries_undelegate",
          [](Datapath& path, uint64_t ino) { path.dentries().undelegate(ino); }, "ino"_a,
          "Lanes change no more names in the directory.")
      .def(
          "creations_refuse",
          [](Datapath& path, std::vector<uint32_t> uids, std::vector<uint32_t> gids) {
            path.journal().refuse(std::move(uids), std::move(gids));
            path.dentries().owners_told();
          },
          "uids"_a, "gids"_a,
          "Files of these users and groups are made by upcalls: they have quotas.")
      .def(
          "creations_share",
          [](Datapath& path, uint64_t directory, uint64_t files, uint64_t size_limit) {
            path.journal().share(directory, files, size_limit);
          },
          "directory"_a, "files"_a, "size_limit"_a,
          "So many files more may be made in a directory of a tree with limits, each up to a size.")
      .def(
          "creations_unshare",
          [](Datapath& path, uint64_t directory) { path.journal().unshare(directory); },
          "directory"_a, "The directory has no such share any more.");
}

void bind_change_runs(PortClass<ChangesPort>& type) {
  type.def(
          "changes_left", [](Datapath& path) { return path.journal().any(); },
          "Whether changes wait to be taken.")
      .def("changes_take", &changes_take, "spare_open"_a,
           nb::sig("def changes_take(self, spare_open: bool) -> list[ChangeRun]"),
           "Changes that were not taken yet, oldest first, in runs. spare_open: only those before "
           "the first file that was made within 200 ms and is open.")
      .def(
          "changes_reported",
          [](Datapath& path, uint64_t count) { path.journal().changes_reported(count); }, "count"_a,
          "The metaserver has answered so many removals, settings and moves.")
      .def(
          "creations_reported",
          [](Datapath& path, const std::vector<uint64_t>& inos) {
            unlocked([&] { path.core().creations_reported(inos); });
          },
          "inos"_a,
          "The metaserver is told of these new files as they are: nothing more comes along with "
          "them.")
      .def(
          "inline_creations",
          [](Datapath& path, uint32_t most) { path.core().inline_length(most); }, "length_max"_a,
          "Before start(): new files of so many bytes at most may lie in their record (decision "
          "0037); 0: none.");
}

}  // namespace

void bind_changes(nb::module_& module) {
  bind_rows(module);
  PortClass<ChangesPort> type(
      module, "ChangesPort", "What lanes change in directories that are delegated to this client.");
  bind_delegation(type);
  bind_slots(type);
  bind_change_runs(type);
}

}  // namespace braidfs::bindings
