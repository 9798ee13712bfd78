#include "fuse/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>

#include "net/unique_fd.h"

namespace braidfs::fuse {

namespace {

constexpr uint64_t bit(int signal) { return 1ULL << (signal - 1); }

constexpr uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGWINCH);
constexpr uint64_t kStopsByDefault = bit(SIGSTOP) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
constexpr uint64_t kHarmless = kIgnoredByDefault | kStopsByDefault;
constexpr uint64_t kAsks = bit(SIGHUP) | bit(SIGINT) | bit(SIGQUIT) | bit(SIGTERM);

// The hexadecimal number on the line with this name.
std::optional<uint64_t> mask_of(std::string_view status, std::string_view name) noexcept {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view digits = status.substr(at + name.size(), 16);
  uint64_t mask = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), mask, 16);
  if (read.ec != std::errc{}) return std::nullopt;
  return mask;
}

}  // namespace

std::optional<Signals> parse_signals(std::string_view status) noexcept {
  const auto own = mask_of(status, "\nSigPnd:\t");
  const auto shared = mask_of(status, "\nShdPnd:\t");
  const auto blocked = mask_of(status, "\nSigBlk:\t");
  const auto ignored = mask_of(status, "\nSigIgn:\t");
  const auto handled = mask_of(status, "\nSigCgt:\t");
  if (!own || !shared || !blocked || !ignored || !handled) return std::nullopt;
  const uint64_t pending = (*own | *shared) & ~*blocked & ~*ignored;
  // Linux marks every thread with SIGKILL when a signal ends the process; for a signal that also
  // dumps core it does so only when the process takes it.
  const uint64_t fatal = pending & ~*handled & ~kHarmless;
  return Signals{.fatal = fatal != 0, .asks = (pending & *handled & kAsks) != 0};
}

std::optional<Signals> signals_of(uint32_t thread) noexcept {
  if (thread == 0) return std::nullopt;
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%u/status", thread);
  const net::UniqueFd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 8192>
      text;  // the file has some 1.5 KiB; long lists of groups may come before the signals
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  return parse_signals({text.data(), length});
}

}  // namespace braidfs::fuse
