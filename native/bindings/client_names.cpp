// The port of names: attributes, dentries and granted children, as far as lanes answer from them.
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

std::string_view text(const nb::bytes& name) {
  return {static_cast<const char*>(name.data()), name.size()};
}

void attributes_put(Datapath& path, const nb::bytes& attributes, uint32_t valid_ms, bool leased) {
  const auto now = names::AttributeTable::Clock::now();
  checked(path.attributes().put(view(attributes), std::chrono::milliseconds(valid_ms), now, leased),
          "a malformed record");
}

// The wanted of these records, under leases; returns those that are known by their directory's
// grant as of before: these are not put.
std::vector<uint64_t> attributes_put_rows(Datapath& path, const nb::bytes& attributes,
                                          const nb::bytes& wanted) {
  checked(attributes.size() == wanted.size() * record::kBytes, "columns of different lengths");
  const auto records = view(attributes);
  const auto is_wanted = view(wanted);
  return unlocked([&] {
    std::vector<uint64_t> older;
    const auto now = names::AttributeTable::Clock::now();
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
  client::AheadPage page;
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

struct ChildrenRow {
  size_t count = 0;  // those that lie in their record count as more
  uint64_t used = 0;
  uint64_t unused = 0;
};

ChildrenRow children_counts(Datapath& path) {
  const auto& children = path.children();
  return {children.weight(), children.used(), children.unused()};
}

void entries_complete(Datapath& path, uint64_t ino, uint32_t valid_ms) {
  const auto now = names::DentryTable::Clock::now();
  path.dentries().complete(ino, now + std::chrono::milliseconds(valid_ms));
}

void entries_extend(Datapath& path, uint64_t ino, uint32_t valid_ms) {
  const auto now = names::DentryTable::Clock::now();
  path.dentries().extend(ino, now + std::chrono::milliseconds(valid_ms));
}

// The rows as columns; inos and cookies are numbers of eight bytes.
bool names_list(Datapath& path, uint64_t directory, const std::vector<nb::bytes>& names,
                const nb::bytes& inos, const nb::bytes& cookies, uint64_t behind, bool end,
                uint64_t asked) {
  using names::DentryTable;
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

void expire_names(Datapath& path, uint64_t parent, const std::vector<nb::bytes>& names) {
  std::vector<std::string_view> texts;
  for (const nb::bytes& name : names) texts.push_back(text(name));
  checked(unlocked([&] { return path.expire_names(parent, texts); }));
}

void bind_attributes_and_names(PortClass<NamesPort>& type) {
  type.def("attributes_put", &attributes_put, "attributes"_a, "valid_ms"_a, "leased"_a,
           "Lanes answer GETATTR by this record (without a lease: of directories). Raises "
           "ValueError.")
      .def("attributes_put_rows", &attributes_put_rows, "attributes"_a, "wanted"_a,
           "Leased records, of which the wanted (a byte each) are put. Returns those that a "
           "directory's grant knows as of before: they are not put. Raises ValueError.")
      .def(
          "attributes_drop", [](Datapath& path, uint64_t ino) { path.attributes().drop(ino); },
          "ino"_a, "Lanes ask for its attributes again.")
      .def(
          "entries_lease",
          [](Datapath& path, uint64_t ino) {
            path.dentries().lease(ino, names::DentryTable::Clock::now());
          },
          "ino"_a, "An ENTRIES lease is held: names that are put from now on are answered.")
      .def("entries_complete", &entries_complete, "ino"_a, "valid_ms"_a,
           "A new directory: a LOOKUP of a name that was never put is ENOENT.")
      .def("entries_extend", &entries_extend, "ino"_a, "valid_ms"_a,
           "It is still complete (without a lease); nothing happens if it was forgotten.")
      .def(
          "entries_drop",
          [](Datapath& path, uint64_t ino) {
            path.dentries().drop(ino, names::DentryTable::Clock::now());
          },
          "ino"_a, "Lanes ask for its names again.")
      .def(
          "entry_put",
          [](Datapath& path, uint64_t parent, const nb::bytes& name, uint64_t ino) {
            return path.dentries().put(parent, text(name), ino, names::DentryTable::Clock::now());
          },
          "parent"_a, "name"_a, "ino"_a,
          "What a name is (0: absent). True: the kernel may be told so with a time.")
      .def(
          "names_changes", [](Datapath& path) { return path.dentries().changes(); },
          "A number that grows with every change of names; names_list() takes it as `asked`.")
      .def("names_list", &names_list, "directory"_a, "names"_a, "inos"_a, "cookies"_a, "behind"_a,
           "end"_a, "asked"_a,
           "Names in the order of their cookies, behind one of them. False: they changed since "
           "`asked`. Raises ValueError.")
      .def(
          "listing_read", &listing_read, "directory"_a, "offset"_a, "size"_a,
          nb::sig("def listing_read(self, directory: int, offset: int, size: int) -> bytes | None"),
          "What a lane would answer to READDIRPLUS; None: it would ask.")
      .def(
          "entry_unsure",
          [](Datapath& path, uint64_t parent, const nb::bytes& name) {
            path.dentries().unsure(parent, text(name));
          },
          "parent"_a, "name"_a, "Before a request leaves that may change the name.")
      .def(
          "entry_moves",
          [](Datapath& path, uint64_t parent, const nb::bytes& name, uint64_t new_parent,
             const nb::bytes& new_name) {
            return path.dentries().moves(parent, text(name), new_parent, text(new_name));
          },
          "parent"_a, "name"_a, "new_parent"_a, "new_name"_a,
          "Before a RENAME leaves: the kernel takes along what it was told of the name. False: "
          "that is not kept in mind.");
}

void bind_children(PortClass<NamesPort>& type) {
  type.def("open_ahead", &open_ahead, "parent"_a, "has_names"_a, "names"_a, "attributes"_a,
           "layouts"_a, "capabilities"_a, "wanted"_a,
           "Columns of OPENED_AHEAD: lanes answer LOOKUP (if the names are certain), GETATTR and "
           "OPEN for reading of the wanted (a byte each). Returns which were taken, a byte each. "
           "Raises ValueError.")
      .def("child_drop", &Datapath::child_drop, "ino"_a, ReleaseGil(),
           "A file is not held by its directory any more. Returns how many handles lanes have of "
           "it, whose RELEASEs are reported from now on; -1: it was not held so.")
      .def(
          "child_is_older",
          [](Datapath& path, uint64_t ino, uint64_t version) {
            return path.children().is_older(ino, version);
          },
          "ino"_a, "change_version"_a,
          "Whether what is known of a granted child is from before that change.")
      .def(
          "children_of",
          [](Datapath& path, uint64_t parent) {
            return unlocked([&] { return path.children().of(parent); });
          },
          "parent"_a, "The granted children of a directory; 0: of all directories.")
      .def(
          "children_open",
          [](Datapath& path) { return unlocked([&] { return path.core().inodes_granted(); }); },
          "The granted children that lanes have open.")
      .def(
          "children_pause", [](Datapath& path, bool paused) { path.core().pause_granted(paused); },
          "paused"_a, "Lanes open no more granted children meanwhile.")
      .def("children_counts", &children_counts,
           "How many there are; how many lanes opened, each once; how many were dropped unopened.");
}

void bind_leases(PortClass<NamesPort>& type) {
  type.def("expire_names", &expire_names, "parent"_a, "names"_a,
           "The kernel asks for these names again. Raises OSError.")
      .def(
          "lease_until",
          [](Datapath& path, uint32_t left_ms) {
            path.lease_until(std::chrono::milliseconds(left_ms));
          },
          "left_ms"_a, "Leases that are held last for so long; they count from the first call on.")
      .def(
          "lease_drop",
          [](Datapath& path, uint64_t token, const std::vector<uint64_t>& inos, uint32_t facets) {
            return unlocked([&] { return path.lease_drop(token, inos, facets); });
          },
          "token"_a, "inos"_a, "facets"_a,
          "Facets META 1, ENTRIES 2, DATA 4 are lost: forgotten here and in the kernel, then "
          "DONE(token). With no facet: DONE(token) when the kernel has the notifications of "
          "attributes and pages that were sent before. Returns how many names the kernel believed.")
      .def(
          "leases_clear", [](Datapath& path) { path.leases_clear(); },
          "The session is lost: nothing is known under its leases any more.")
      .def(
          "invalidate_inode",
          [](Datapath& path, uint64_t ino, int64_t offset, int64_t length) {
            checked(unlocked([&] { return path.invalidate_inode(ino, offset, length); }));
          },
          "ino"_a, "offset"_a, "length"_a,
          "The kernel drops these pages of an inode; offset -1: its attributes alone. Raises "
          "OSError.");
}

}  // namespace

void bind_names(nb::module_& module) {
  nb::class_<ChildrenRow>(module, "ChildrenRow", "Granted children of directories.")
      .def_ro("count", &ChildrenRow::count)
      .def_ro("used", &ChildrenRow::used)
      .def_ro("unused", &ChildrenRow::unused);
  PortClass<NamesPort> type(module, "NamesPort",
                            "Names and attributes that lanes answer, and the leases on them.");
  bind_attributes_and_names(type);
  bind_children(type);
  bind_leases(type);
}

}  // namespace braidfs::bindings
