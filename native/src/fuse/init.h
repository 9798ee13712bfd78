// What is agreed with the kernel at INIT, and the older INIT that pyfuse3 is shown. Pure.
//
// pyfuse3 is told protocol 7.13: libfuse then never splices from its fd (it would fail on a
// socket), never asks for anything that this side has not agreed with the kernel, and the layouts
// of all requests and replies it knows are those of today (they last changed in 7.12). It loses
// notify_store, notify_delete and retrieve, which native sends itself (notifier.h).
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
  bool passthrough = false;  // files may have another file system's behind them
  bool sealed =
      false;  // locks are the kernel's own, among the processes of this machine (sealed.cpp)
  bool checks_elsewhere = false;  // permissions, and ACLs with them, are not the kernel's to check
  bool idmap = false;  // who asks is told with what makes inodes alone; mounts may be idmapped then
};

struct Negotiated {
  int error = 0;  // a positive errno: not a kernel to work with
  uint64_t flags = 0;
  fuse_init_out reply{};
};

// `body` is what follows the header of the INIT request.
Negotiated negotiate(std::span<const std::byte> body, const InitSettings& settings) noexcept;

inline constexpr uint64_t kUpcallInitUnique = 1;  // the kernel's are even

std::vector<std::byte> upcall_init(const Negotiated& negotiated);

}  // namespace braidfs::fuse
