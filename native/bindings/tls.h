// What the halves take over from Python with a socket: its TLS (docs/INTERFACES.md 3.4).
#pragma once
#include <memory>
#include <utility>

#include "net/tls.h"

namespace braidfs::bindings {

// Empty once a half has it.
struct TlsHandle {
  std::unique_ptr<net::Tls> tls;
};

// None: a socket without TLS.
inline std::unique_ptr<net::Tls> take_tls(TlsHandle* handle) {
  return handle == nullptr ? nullptr : std::move(handle->tls);
}

}  // namespace braidfs::bindings
