// RemoteCopy for Python: copies of objects of other storage servers. Only translation, as in
// server.cpp; steps run without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "calls.h"
#include "server/chunk_server.h"
#include "server/low_priority.h"
#include "tls.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using braidfs::bindings::TlsHandle;
using braidfs::server::ChunkServer;
using braidfs::server::CopyProgress;
using braidfs::server::RemoteCopy;

struct CopyProgressRow {
  int status;
  std::string message;
  bool is_done;
  uint64_t bytes;
  uint64_t incarnation;
  uint64_t source_incarnation;
  bool serves_clients;
};

std::unique_ptr<RemoteCopy> make_copy(int fd, uint32_t patience_ms, TlsHandle* tls) {
  if (fd < 0) throw nb::value_error("fd is negative");
  braidfs::net::Socket owned(braidfs::net::UniqueFd(fd), braidfs::bindings::take_tls(tls));
  return std::make_unique<RemoteCopy>(std::move(owned), std::chrono::milliseconds(patience_ms));
}

void begin(RemoteCopy& copy, uint32_t source_target, uint32_t source_object, uint32_t target,
           uint64_t file_id, uint32_t object, uint32_t epoch, bool must_exist) {
  copy.begin({.source = {source_target, file_id, source_object},
              .target = target,
              .object = {file_id, object},
              .epoch = epoch,
              .must_exist = must_exist});
}

CopyProgressRow step(ChunkServer& server, RemoteCopy& copy, uint64_t bytes) {
  const CopyProgress done = braidfs::bindings::unlocked([&] {
    const braidfs::server::LowPriority low;
    return server.copy_step(copy, bytes);
  });
  return {
      static_cast<int>(done.status), done.message,       done.is_done, done.bytes, done.incarnation,
      done.source_incarnation,       done.serves_clients};
}

void bind_progress_row(nb::module_& module) {
  nb::class_<CopyProgressRow>(module, "CopyProgressRow",
                              "How far a copy has come; status: 0, or why it has failed; message: "
                              "the same in words, if there are any; bytes: copied so far; "
                              "serves_clients: the source's target had requests of clients.")
      .def_ro("status", &CopyProgressRow::status)
      .def_ro("message", &CopyProgressRow::message)
      .def_ro("is_done", &CopyProgressRow::is_done)
      .def_ro("bytes", &CopyProgressRow::bytes)
      .def_ro("incarnation", &CopyProgressRow::incarnation)
      .def_ro("source_incarnation", &CopyProgressRow::source_incarnation)
      .def_ro("serves_clients", &CopyProgressRow::serves_clients);
}

}  // namespace

void bind_copies(nb::module_& module) {
  bind_progress_row(module);
  nb::class_<RemoteCopy>(module, "RemoteCopy",
                         "Copies objects of another storage server, over one connection.")
      .def(nb::new_(&make_copy), "fd"_a, nb::kw_only(), "patience_ms"_a,
           "tls"_a.none() = nb::none())
      .def("begin", &begin, nb::kw_only(), "source_target"_a, "source_object"_a, "target"_a,
           "file_id"_a, "object"_a, "epoch"_a, "must_exist"_a,
           "The object that is copied next, once the former one is done or has failed.")
      .def("cut", &RemoteCopy::cut, "Ends the connection; a step that is under way fails.")
      .def("is_usable", &RemoteCopy::is_usable, "Whether another object can be copied over it.");
}

void bind_copy_step(nb::class_<ChunkServer>& server) {
  server.def("copy_step", &step, "copy"_a, "bytes"_a,
             "Goes on with a copy, by about this many bytes, or to its end. Blocks.");
}
