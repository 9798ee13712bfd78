// The port of the cluster: nodes, targets, and the connections to them.
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
#include "rdma.h"
#include "tls.h"

namespace braidfs::bindings {

namespace nb = nanobind;
using nb::literals::operator""_a;
using client::Datapath;

namespace {

int rdma_open(Datapath& path, const std::string& device, uint8_t port, uint8_t gid_index,
              uint32_t memory_mib) {
  std::string reason;
  const auto address = rdma_address(device, port, gid_index);
  const int rail = unlocked([&] {
    return path.rails().open(address, path.core().lane_count(), uint64_t{memory_mib} << 20, false,
                             reason);
  });
  if (rail < 0) raise_rdma_error(-rail, reason);
  return rail;
}

OfferRow rdma_offer(Datapath& path, uint32_t rail, uint32_t lane) {
  uint64_t token = 0;
  rdma::Peer local;
  const int error = unlocked([&] { return path.rails().offer(rail, lane, token, local); });
  return offer_row(error, token, local);
}

void connection_put(Datapath& path, uint32_t lane, uint32_t node, int fd, uint64_t rdma,
                    TlsHandle* tls) {
  checked(fd >= 0, "fd is negative");
  net::Socket socket(net::UniqueFd(fd), take_tls(tls));
  auto claim = path.rails().claim(rdma);
  checked(rdma == 0 || (claim.channel && claim.lane == lane), "no queue pair has this token");
  const bool taken = unlocked([&] {
    return path.core().connection_put(lane, node, std::move(socket), std::move(claim.channel));
  });
  checked(taken, "no such lane");
}

}  // namespace

void bind_cluster(nb::module_& module) {
  nb::class_<OfferRow>(module, "OfferRow",
                       "An offered queue pair; description: what its peer has to know of it.")
      .def_ro("token", &OfferRow::token)
      .def_ro("description", &OfferRow::description);
  PortClass<ClusterPort> type(module, "ClusterPort",
                              "Nodes, targets, and the connections to them.");
  bind_rdma(type.type());
  type.def(
          "node_put", [](Datapath& path, uint32_t node) { path.core().node_put(node); }, "node"_a,
          ReleaseGil(), "Lanes ask for connections to this node (CONNECT).")
      .def(
          "target_put",
          [](Datapath& path, uint32_t target, uint32_t node) {
            path.core().target_put(target, node);
          },
          "target"_a, "node"_a, ReleaseGil(), "This target is on that node.")
      .def(
          "target_state",
          [](Datapath& path, uint32_t target, bool up) { path.core().target_state(target, up); },
          "target"_a, "up"_a, ReleaseGil(),
          "Whether a known target is up, by the cluster map. Down: lanes PING its node at once if "
          "they wait for it. Up: they connect without backoff.")
      .def("connection_put", &connection_put, "lane"_a, "node"_a, "fd"_a, "rdma"_a = 0,
           "tls"_a.none() = nb::none(),
           "An authenticated socket for a lane; native owns it. rdma: the token of an agreed queue "
           "pair. Raises ValueError.")
      .def(
          "connection_failed",
          [](Datapath& path, uint32_t lane, uint32_t node) {
            checked(unlocked([&] { return path.core().connection_failed(lane, node); }),
                    "no such lane");
          },
          "lane"_a, "node"_a,
          "No connection could be made; native asks again with backoff. Raises ValueError.")
      .def("rdma_open", &rdma_open, "device"_a, "port"_a, "gid_index"_a, "memory_mib"_a,
           "Opens an RDMA device. Returns the number of its rail. Raises OSError with a sentence.")
      .def("rdma_offer", &rdma_offer, "rail"_a, "lane"_a,
           "Offers a queue pair for a lane. Raises OSError.")
      .def("session_put", &Datapath::session_put, "session"_a,
           "The session with the metaserver, which lanes name to storage servers.");
}

}  // namespace braidfs::bindings
