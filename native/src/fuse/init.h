// What is negotiated with the kernel at INIT, and the older INIT that pyfuse3 gets. Pure.
//
// pyfuse3 gets protocol 7.13: then libfuse never splices from its fd (which would fail on a socket)
// and never asks for anything that was not negotiated with the kernel, and the layouts of all
// requests and replies that it knows are today's (they last changed in 7.12). It loses
// notify_store, notify_delete and retrieve; native sends notifications itself (notifier.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fuse/protocol.h"

namespace braidfs::fuse {

struct InitSettings {
  uint32_t max_write = 1u << 20;  // a multiple of 4096, 4 KiB to 16 MiB
  uint16_t max_background = 256;
  bool passthrough = false;  // files of another file system may be read in place of ours
  bool sealed =
      false;  // the kernel itself keeps locks, between processes of this machine (sealed.cpp)
  bool checks_elsewhere = false;  // the kernel checks neither permissions nor ACLs
  bool idmap = false;  // mounts may be idmapped; only requests that make inodes have a uid then
};

struct Negotiated {
  int error = 0;  // a positive errno: this kernel does not suffice
  uint64_t flags = 0;
  fuse_init_out reply{};
};

// `body`: of the INIT request, without the header.
Negotiated negotiate(std::span<const std::byte> body, const InitSettings& settings) noexcept;

inline constexpr uint64_t kUpcallInitUnique = 1;  // odd: the kernel's are even

std::vector<std::byte> upcall_init(const Negotiated& negotiated);

}  // namespace braidfs::fuse
