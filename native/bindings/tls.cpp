// TlsContext and Tls for Python, which shakes hands on every connection (docs/INTERFACES.md 3.4).
// Only translation: a socket's -errno to OSError with OpenSSL's reason, bad files to ValueError.
// No call waits, so the GIL is kept.
#include "tls.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using braidfs::bindings::TlsHandle;
using braidfs::net::Tls;
using braidfs::net::TlsContext;

struct ContextHandle {
  std::shared_ptr<const TlsContext> context;
};

enum Wait : int { kDone = 0, kReadable = 1, kWritable = 2 };

Tls& tls_of(TlsHandle& handle) {
  if (!handle.tls) throw nb::value_error("it was given to a lane");
  return *handle.tls;
}

[[noreturn]] void raise(const Tls& tls, ssize_t error) {
  const std::string why =
      tls.fault().empty() ? std::strerror(static_cast<int>(-error)) : tls.fault();
  PyErr_SetObject(PyExc_OSError, nb::make_tuple(static_cast<int>(-error), why).ptr());
  throw nb::python_error();
}

ContextHandle checked(std::shared_ptr<const TlsContext> context, const std::string& fault) {
  if (!context) throw nb::value_error(fault.c_str());
  return {std::move(context)};
}

int shake(TlsHandle& handle) {
  Tls& tls = tls_of(handle);
  const int error = tls.shake();
  if (error == 0) return kDone;
  if (error != -EAGAIN) raise(tls, error);
  return tls.unsent() ? kWritable : kReadable;
}

nb::object receive(TlsHandle& handle, size_t room) {
  Tls& tls = tls_of(handle);
  std::vector<char> place(room);
  const iovec where{place.data(), place.size()};
  const ssize_t count = tls.receive({&where, 1});
  if (count == -EAGAIN) return nb::none();
  if (count < 0) raise(tls, count);
  return nb::bytes(place.data(), static_cast<size_t>(count));
}

size_t send(TlsHandle& handle, const nb::bytes& bytes, size_t start) {
  Tls& tls = tls_of(handle);
  if (start > bytes.size()) throw nb::value_error("start is behind the bytes");
  const iovec what{const_cast<char*>(bytes.c_str()) + start, bytes.size() - start};
  const ssize_t count = tls.send({&what, 1});
  if (count == -EAGAIN) return 0;
  if (count < 0) raise(tls, count);
  return static_cast<size_t>(count);
}

bool flush(TlsHandle& handle) {
  Tls& tls = tls_of(handle);
  const int error = tls.flush();
  if (error != 0 && error != -EAGAIN) raise(tls, error);
  return error == 0;
}

TlsHandle open(const ContextHandle& handle, int fd, const std::string& peer_name,
               uint64_t records_per_key) {
  auto tls = handle.context->open(fd, peer_name, records_per_key);
  if (!tls) throw nb::value_error("not the name of a host");
  return {std::move(tls)};
}

}  // namespace

void bind_tls(nb::module_& module) {
  nb::class_<TlsHandle>(module, "Tls", "One connection; shake() and flush() before anything else.")
      .def("shake", &shake, "0: done; 1, 2: again when the socket can be read, written.")
      .def("receive", &receive, "room"_a, nb::sig("def receive(self, room: int) -> bytes | None"),
           "None: nothing yet; b\"\": the peer's end.")
      .def("send", &send, "octets"_a, "start"_a = 0, "How many were taken from start on.")
      .def("flush", &flush, "Whether all that was taken is at the kernel.")
      .def(
          "cipher", [](TlsHandle& handle) { return tls_of(handle).cipher(); },
          "The cipher that was agreed.")
      .def(
          "peer_certificate",
          [](TlsHandle& handle) {
            const auto seen = tls_of(handle).peer_certificate();
            return nb::make_tuple(seen.subject, seen.issuer, seen.ends_s);
          },
          nb::sig("def peer_certificate(self) -> tuple[str, str, int]"),
          "Subject and issuer of the peer's certificate, and the second since 1970 when it ends.");
  nb::class_<ContextHandle>(module, "TlsContext", "Certificates, for any number of connections.")
      .def_static(
          "server",
          [](const std::string& certificate, const std::string& key) {
            std::string fault;
            auto made = TlsContext::server(certificate, key, fault);
            return checked(std::move(made), fault);
          },
          "certificate_file"_a, "key_file"_a)
      .def_static(
          "client",
          [](const std::string& authorities) {
            std::string fault;
            auto made = TlsContext::client(authorities, fault);
            return checked(std::move(made), fault);
          },
          "authorities_file"_a)
      .def("open", &open, "fd"_a, "peer_name"_a = "",
           "records_per_key"_a = TlsContext::kRecordsPerKey,
           "TLS on a socket of the caller's. peer_name: of a client, whom it dialled. "
           "records_per_key: after so many the keys change.");
}
