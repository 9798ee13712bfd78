// The signals that wait for a thread, from /proc: FUSE_INTERRUPT does not say which came.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace braidfs::fuse {

struct Signals {
  bool fatal = false;  // one of them ends the process
  bool asks = false;   // people end programs with one of them, but the program handles it
};

// Parses /proc/PID/status. Nothing: the text has no signals.
std::optional<Signals> parse_signals(std::string_view status) noexcept;

// Nothing: the thread is not visible here. It may be in another PID namespace.
std::optional<Signals> signals_of(uint32_t thread) noexcept;

}  // namespace braidfs::fuse
