#include "commits.h"

#include "calls.h"

namespace braidfs::bindings {

namespace nb = nanobind;
using namespace nanobind::literals;
using client::Datapath;

namespace {

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

}  // namespace

void bind_commits(nb::class_<Datapath>& type) {
  type.def("commit_done", &commit_done, "token"_a, "status"_a, "attributes"_a)
      .def(
          "inode_commits",
          [](Datapath& path, uint64_t ino) {
            return unlocked([&] { return path.core().inode_commits(ino); });
          },
          "ino"_a)
      .def("cut_done", &cut_done, "ino"_a, "number"_a, "status"_a, "attributes"_a, "layout"_a,
           "capability"_a)
      .def("cuts_pause", &pause_cuts, "ino"_a, "paused"_a);
}

}  // namespace braidfs::bindings
