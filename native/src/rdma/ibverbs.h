// Opens a device through libibverbs, which is loaded with dlopen at the first open. Where it is not
// installed, programs run and say why there is no RDMA.
//
// Threads: ANY THREAD. Not here: what a device does (verbs.h).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "rdma/verbs.h"

namespace braidfs::rdma {

struct DeviceAddress {
  std::string device;  // such as mlx5_0
  uint8_t port = 1;
  uint8_t gid_index = 0;
};

// 0, or -errno with a sentence in `reason` (-ENOSYS: no libibverbs; -ENODEV: no such device).
int open_device(const DeviceAddress& address, std::unique_ptr<Device>& device, std::string& reason);

}  // namespace braidfs::rdma
