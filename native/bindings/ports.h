// The ports of a mounted client's native half: what Python may ask of it, in six small classes
// (docs/NATIVE.md). A port is a view of one Datapath, which it keeps alive.
//
// Only translation, as everywhere in this folder: arguments to the types of client/datapath.h,
// -errno to OSError, malformed or unknown arguments to ValueError. No call back into Python; the
// GIL is released in every call that takes a lock for long or waits.
#pragma once
#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

#include "client/datapath.h"

namespace braidfs::bindings {

template <typename Name>
struct Port {
  client::Datapath* path;
  rdma::Rails& rails() { return path->rails(); }
};

using MountingPort = Port<struct Mounting>;   // the mount's life, and its hand-over
using ClusterPort = Port<struct Cluster>;     // nodes, targets and connections
using InodesPort = Port<struct Inodes>;       // open files and the leases on their bytes
using NamesPort = Port<struct NamesOfFiles>;  // attributes, dentries and granted children
using ChangesPort = Port<struct Changes>;     // what lanes change in delegated directories
using IoPort = Port<struct Io>;               // events, upcalls, and work on file bytes

// `call`, whose first argument is a Datapath, as a method of a port.
template <typename P, typename Result, typename... Args>
auto on_port(Result (*call)(client::Datapath&, Args...)) {
  return [call](P& port, Args... args) -> Result {
    return call(*port.path, std::forward<Args>(args)...);
  };
}
template <typename P, typename Result, typename... Args>
auto on_port(Result (client::Datapath::*call)(Args...)) {
  return [call](P& port, Args... args) -> Result {
    return (port.path->*call)(std::forward<Args>(args)...);
  };
}
template <typename P, typename Result, typename... Args>
auto on_port(Result (client::Datapath::*call)(Args...) noexcept) {
  return on_port<P>(static_cast<Result (client::Datapath::*)(Args...)>(call));
}
template <typename P, typename Result>
auto on_port(Result (client::Datapath::*call)() const noexcept) {
  return [call](P& port) -> Result { return (port.path->*call)(); };
}

// A class of Python's for a port, whose methods are functions of a Datapath.
template <typename P>
class PortClass {
 public:
  PortClass(nanobind::module_& module, const char* name, const char* text)
      : type_(module, name, text) {}

  template <typename Call, typename... Extra>
  PortClass& def(const char* name, Call call, const Extra&... extra) {
    if constexpr (std::is_class_v<Call>) {
      type_.def(name, on_port<P>(+call), extra...);
    } else {
      type_.def(name, on_port<P>(call), extra...);
    }
    return *this;
  }
  nanobind::class_<P>& type() noexcept { return type_; }

 private:
  nanobind::class_<P> type_;
};

void bind_mounting(nanobind::module_& module);
void bind_cluster(nanobind::module_& module);
void bind_inodes(nanobind::module_& module);
void bind_names(nanobind::module_& module);
void bind_changes(nanobind::module_& module);
void bind_io(nanobind::module_& module);

}  // namespace braidfs::bindings
