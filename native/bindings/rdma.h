// The methods that both halves have for RDMA (docs/INTERFACES.md 3.3), over rdma::Rails.
// Only translation, as in client.cpp and server.cpp.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>
#include <vector>

#include "rdma/rails.h"

namespace braidfs::bindings {

[[noreturn]] inline void raise_rdma_error(int error, const std::string& reason) {
  PyErr_SetObject(PyExc_OSError, nanobind::make_tuple(error, reason).ptr());
  throw nanobind::python_error();
}

inline rdma::DeviceAddress rdma_address(const std::string& device, uint8_t port,
                                        uint8_t gid_index) {
  return {.device = device, .port = port, .gid_index = gid_index};
}

// A queue pair that was offered: its token here, and what the peer has to know of it.
struct OfferRow {
  uint64_t token = 0;
  nanobind::bytes description;
};

inline OfferRow offer_row(int error, uint64_t token, const rdma::Peer& local) {
  if (error != 0) raise_rdma_error(-error, std::string("no queue pair: ") + std::strerror(-error));
  return {token, nanobind::bytes(&local, sizeof local)};
}

// T has rails().
template <typename T>
void rdma_connect(T& half, uint64_t token, const nanobind::bytes& peer) {
  int error = 0;
  {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(peer.data()), peer.size());
    const nanobind::gil_scoped_release released;
    error = half.rails().connect(token, bytes);
  }
  if (error == -EPROTO) throw nanobind::value_error("this describes no queue pair that fits");
  if (error == -ENOENT) throw nanobind::value_error("no queue pair has this token");
  if (error != 0) {
    raise_rdma_error(-error,
                     std::string("the queue pair cannot be connected: ") + std::strerror(-error));
  }
}

template <typename T>
void bind_rdma(nanobind::class_<T>& type) {
  using nanobind::literals::operator""_a;
  type.def("rdma_connect", &rdma_connect<T>, "token"_a, "peer"_a,
           "Connects an offered queue pair. Raises ValueError: this describes none; OSError: it "
           "cannot be connected.")
      .def(
          "rdma_drop",
          [](T& half, uint64_t token) {
            const nanobind::gil_scoped_release released;
            half.rails().drop(token);
          },
          "token"_a, "An offer came to nothing; unknown tokens are ignored.")
      .def(
          "rdma_close",
          [](T& half, uint32_t rail) {
            const nanobind::gil_scoped_release released;
            half.rails().close(rail);
          },
          "rail"_a, "Closes a rail.")
      .def(
          "rdma_check",
          [](T& half) {
            std::vector<int> failed;
            {
              const nanobind::gil_scoped_release released;
              failed = half.rails().check();
            }
            nanobind::list numbers;
            for (const int number : failed) numbers.append(number);
            return numbers;
          },
          nanobind::sig("def rdma_check(self) -> list[int]"), "The rails whose device has failed.");
}

}  // namespace braidfs::bindings
