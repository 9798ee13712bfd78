// Which signals wait for a thread, as /proc tells it: FUSE_INTERRUPT says that one came, not which.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace braidfs::fuse {

struct Signals {
  bool fatal = false;  // one that ends the process
  bool asks = false;   // one by which people end a program, though it is handled
};

// What /proc/PID/status says. Nothing: it is no such text.
std::optional<Signals> parse_signals(std::string_view status) noexcept;

// Nothing: no such thread is visible here. It may be in another PID namespace.
std::optional<Signals> signals_of(uint32_t thread) noexcept;

}  // namespace braidfs::fuse
