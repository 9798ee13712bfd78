// Composition of the Python module _braidfs_native: the only place where both halves meet.
// tls.cpp binds TLS of sockets, server.cpp ChunkServer, client.cpp Datapath; core/ and below know
// no Python.
#include <nanobind/nanobind.h>

#include "braidfs/frame.h"

namespace nb = nanobind;

void bind_tls(nb::module_& module);
void bind_server(nb::module_& module);
void bind_client(nb::module_& module);

NB_MODULE(_braidfs_native, module) {
  nb::set_leak_warnings(false);  // what tasks of a finished event loop hold ends with the process
  module.doc() = "The native data plane of BraidFS (docs/INTERFACES.md, section 3).";
  module.attr("HEADER_SIZE") = braidfs::kHeaderSize;
  module.attr("FRAME_VERSION") = static_cast<int>(braidfs::kFrameVersion);
  bind_tls(module);
#ifdef BRAIDFS_HAS_SERVER
  bind_server(module);
#endif
#ifdef BRAIDFS_HAS_CLIENT
  bind_client(module);
#endif
}
