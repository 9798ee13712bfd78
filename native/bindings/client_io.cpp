// The port of events, upcalls, and work on the bytes of files.
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

struct EventRow {
  int kind = 0;
  uint64_t token = 0;
  uint64_t ino = 0;
  int64_t a = 0;
  int64_t b = 0;
  nb::bytes payload;
};

struct UpcallRow {
  uint64_t unique = 0;
  uint32_t pid = 0;
  uint32_t opcode = 0;
  uint32_t bits = 0;
  uint64_t nodeid = 0;
};

// passthrough: half of it is for whole copies.
void cache_open(Datapath& path, const std::string& directory, uint64_t bytes_max,
                const nb::bytes& cluster, bool passthrough) {
  cache::StoreSettings settings{.directory = directory, .bytes_max = bytes_max};
  if (passthrough) settings.bytes_max -= settings.copies_bytes_max = bytes_max / 2;
  checked(cluster.size() == settings.cluster.size(), "cluster is not of 16 bytes");
  std::memcpy(settings.cluster.data(), cluster.data(), cluster.size());
  std::string reason;
  if (!unlocked([&] { return path.core().use_cache(settings, reason); }))
    throw nb::value_error(reason.c_str());
  if (passthrough) path.use_passthrough();
}

size_t announce(Datapath& path, const nb::bytes& inos, bool replaces) {
  checked(inos.size() % sizeof(uint64_t) == 0, "inode numbers of eight bytes each");
  std::vector<uint64_t> numbers(inos.size() / sizeof(uint64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), inos.data(), inos.size());
  return unlocked([&] { return path.core().announce(numbers, replaces); });
}

UpcallRow upcall(Datapath& path, uint32_t slot) {
  const auto found = unlocked([&] { return path.upcall(slot); });
  if (!found) throw nb::value_error("no upcall has this slot");
  return {found->unique, found->pid, found->opcode, found->bits & fuse::kUpcallShown,
          found->nodeid};
}

void answer(Datapath& path, uint32_t slot, int error, const nb::bytes& body) {
  checked(error >= 0 && error < 4096, "no such errno");
  checked(unlocked([&] { return path.answer(slot, error, view(body)); }), "no call has this slot");
}

nb::list reap(Datapath& path, size_t count_max) {
  const auto reaped = unlocked([&] { return path.reap(count_max); });
  nb::list rows;
  for (const auto& event : reaped) {
    rows.append(EventRow{static_cast<int>(event.kind), event.token, event.ino, event.a, event.b,
                         bytes_of(event.payload)});
  }
  return rows;
}

void commit_done(Datapath& path, uint64_t token, uint32_t status, const nb::bytes& attributes) {
  checked(status <= UINT16_MAX, "no such status");
  const bool known = unlocked([&] {
    return path.core().commit_done(token, static_cast<Status>(status), view(attributes));
  });
  checked(known, "no COMMIT has this token");
}

void cut_done(Datapath& path, uint64_t ino, uint64_t number, uint32_t status,
              const nb::bytes& attributes, const nb::bytes& layout, const nb::bytes& capability) {
  checked(status <= UINT16_MAX, "no such status");
  unlocked([&] {
    return path.core().cut_done(ino, number, static_cast<Status>(status), view(attributes),
                                view(layout), view(capability));
  });
}

int pause_cuts(Datapath& path, uint64_t ino, bool paused) {
  return static_cast<int>(unlocked([&] { return path.core().pause_cuts(ino, paused); }));
}

void bind_reading_ahead(PortClass<IoPort>& type) {
  type.def("cache_open", &cache_open, "directory"_a, "bytes_max"_a, "cluster"_a,
           "passthrough"_a = false,
           "Before start(): a local cache in this directory. passthrough: half of it is for copies "
           "that the kernel reads (decision 0041). Raises ValueError with a sentence.")
      .def(
          "prefetch",
          [](Datapath& path, uint64_t bytes_max, bool fills_pages) {
            path.core().prefetch(bytes_max, fills_pages);
          },
          "bytes_max"_a, "fills_pages"_a,
          "How many bytes may lie in memory that were fetched before a program asked for them; 0, "
          "as in the beginning: nothing is fetched. fills_pages: small files may be put into the "
          "kernel's pages with their OPEN (decision 0059).")
      .def("announce", &announce, "inos"_a, "replaces"_a,
           "These files (inode numbers of 8 bytes) are going to be read in this order. Returns how "
           "many are noted. Raises ValueError.");
}

void bind_file_work(PortClass<IoPort>& type) {
  type.def(
          "drain",
          [](Datapath& path, uint64_t token, uint64_t ino, bool sync, bool commit) {
            path.core().drain(token, ino, sync, commit);
          },
          "token"_a, "ino"_a, "sync"_a, "commit"_a, ReleaseGil(),
          "DONE(token) when dirty bytes are at the targets (durable if sync), and size and time "
          "are committed if commit.")
      .def(
          "barrier", [](Datapath& path, uint64_t token) { path.core().barrier(token); }, "token"_a,
          ReleaseGil(),
          "DONE(token) when every lane has dealt with what it had read from the kernel.")
      .def(
          "punch",
          [](Datapath& path, uint64_t token, uint64_t ino, uint64_t begin, uint64_t end) {
            checked(unlocked([&] { return path.core().punch(token, ino, begin, end); }),
                    "the inode is not known, or not a range");
          },
          "token"_a, "ino"_a, "begin"_a, "end"_a,
          "Makes a durable hole, then DONE(token); drain() with sync comes before. Raises "
          "ValueError.")
      .def(
          "seek",
          [](Datapath& path, uint64_t token, uint64_t ino, uint64_t start, bool hole) {
            checked(unlocked([&] { return path.core().seek(token, ino, start, hole); }),
                    "the inode is not known, or not an offset");
          },
          "token"_a, "ino"_a, "start"_a, "hole"_a,
          "DONE(token), whose b is the offset of the next data or hole, -1: there is none. Raises "
          "ValueError.")
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
          "only_reach"_a,
          "Copies whole blocks between storage servers, then DONE(token), whose b has a bit for "
          "each stripe written. only_reach: nothing is copied, b is how many bytes could be. "
          "Raises ValueError.");
}

void bind_answers(PortClass<IoPort>& type) {
  type.def("upcall", &upcall, "slot"_a, "The request behind an upcall slot. Raises ValueError.")
      .def("answer", &answer, "slot"_a, "error"_a, "body"_a,
           "Answers a CALL event. error: an errno, or 0. Raises ValueError.")
      .def("events_fd", &Datapath::events_fd, "A descriptor that is readable while events wait.")
      .def("reap", &reap, "count_max"_a,
           nb::sig("def reap(self, count_max: int) -> list[EventRow]"),
           "Events that wait, at most count_max.")
      .def(
          "memory_rest",
          [](Datapath& path, uint64_t piece_bytes, uint64_t read_bytes, bool is_short) {
            path.core().memory().squeeze(is_short);
            if (is_short) path.core().memory_is_short();
            path.core().memory().rest({.pieces = piece_bytes, .reads = read_bytes});
          },
          "piece_bytes"_a, "read_bytes"_a, "short"_a, ReleaseGil(),
          "Idle buffers go back to the system but for so many bytes that stay ready; short: all of "
          "them.")
      .def("commit_done", &commit_done, "token"_a, "status"_a, "attributes"_a,
           "Answers a COMMIT event. Raises ValueError.")
      .def("cut_done", &cut_done, "ino"_a, "number"_a, "status"_a, "attributes"_a, "layout"_a,
           "capability"_a, "Answers a CUT event.")
      .def("cuts_pause", &pause_cuts, "ino"_a, "paused"_a,
           "Lanes cut the file no more, or again. Returns 0: unknown inode, 1: every cut is "
           "reported, 2: drain() reports one.");
}

}  // namespace

void bind_io(nb::module_& module) {
  nb::class_<EventRow>(module, "EventRow",
                       "An event; what token, a and b mean depends on its kind.")
      .def_ro("kind", &EventRow::kind)
      .def_ro("token", &EventRow::token)
      .def_ro("ino", &EventRow::ino)
      .def_ro("a", &EventRow::a)
      .def_ro("b", &EventRow::b)
      .def_ro("payload", &EventRow::payload);
  nb::class_<UpcallRow>(
      module, "UpcallRow",
      "A request of the kernel; bits 1: takes set-id bits, 8: SETATTR of given times.")
      .def_ro("unique", &UpcallRow::unique)
      .def_ro("pid", &UpcallRow::pid)
      .def_ro("opcode", &UpcallRow::opcode)
      .def_ro("bits", &UpcallRow::bits)
      .def_ro("nodeid", &UpcallRow::nodeid);
  PortClass<IoPort> type(module, "IoPort", "Events, upcalls, and work on the bytes of files.");
  bind_reading_ahead(type);
  bind_file_work(type);
  bind_answers(type);
}

}  // namespace braidfs::bindings
