// Datapath for Python: how it is made, and its ports (ports.h).
#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "calls.h"
#include "ports.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using namespace braidfs::bindings;
using braidfs::client::Datapath;
using braidfs::client::DatapathSettings;

std::unique_ptr<Datapath> make_datapath(uint32_t lane_count, uint32_t max_write,
                                        uint64_t dirty_bytes_max,
                                        uint64_t dirty_bytes_per_inode_max, uint64_t held_bytes_max,
                                        uint32_t timeout_ms, uint32_t busy_poll_us,
                                        uint64_t session) {
  const DatapathSettings settings{.lane_count = lane_count,
                                  .max_write = max_write,
                                  .dirty_bytes_max = dirty_bytes_max,
                                  .dirty_bytes_per_inode_max = dirty_bytes_per_inode_max,
                                  .held_bytes_max = held_bytes_max,
                                  .timeout_ms = timeout_ms,
                                  .busy_poll_us = busy_poll_us,
                                  .session = session};
  checked(settings.is_valid(),
          "1 to 64 lanes; max_write a multiple of 4096 up to 16 MiB; busy_poll_us up to 1000");
  return std::make_unique<Datapath>(settings);
}

template <typename P>
void add_port(nb::class_<Datapath>& type, const char* name) {
  type.def_prop_ro(
      name, [](Datapath& path) { return P{&path}; }, nb::keep_alive<0, 1>());
}

}  // namespace

void bind_client(nb::module_& module) {
  bind_mounting(module);
  bind_cluster(module);
  bind_inodes(module);
  bind_names(module);
  bind_changes(module);
  bind_io(module);
  nb::class_<Datapath> type(module, "Datapath", "The data plane of one mounted client.");
  type.def(nb::new_(&make_datapath), nb::kw_only(), "lane_count"_a, "max_write"_a,
           "dirty_bytes_max"_a, "dirty_bytes_per_inode_max"_a, "held_bytes_max"_a, "timeout_ms"_a,
           "busy_poll_us"_a, "session"_a);
  add_port<MountingPort>(type, "mounting");
  add_port<ClusterPort>(type, "cluster");
  add_port<InodesPort>(type, "inodes");
  add_port<NamesPort>(type, "names");
  add_port<ChangesPort>(type, "changes");
  add_port<IoPort>(type, "io");
}
