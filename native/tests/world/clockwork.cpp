#include "clockwork.h"

#include <array>
#include <cstdio>

namespace braidfs::world {

namespace {

constexpr Time kBegin{std::chrono::hours(1)};
constexpr uint64_t kPrime = 0x100000001b3;  // FNV-1a

}  // namespace

VirtualTime::VirtualTime() noexcept {
  now_ = kBegin;
  Clock::set([]() noexcept { return now_; });
}

uint64_t Chance::next() noexcept {
  uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

std::optional<Time> Agenda::first() const {
  if (tasks_.empty()) return std::nullopt;
  return tasks_.begin()->first.first;
}

void Agenda::run_first() {
  const auto due = tasks_.extract(tasks_.begin());
  due.mapped()();
}

void Trace::note(const char* format, ...) {
  std::array<char, 512> text;
  va_list given;
  va_start(given, format);
  const int written = std::vsnprintf(text.data(), text.size(), format, given);
  va_end(given);
  const auto length = std::min<size_t>(written < 0 ? 0 : static_cast<size_t>(written), 511);
  const int64_t at_us =
      std::chrono::duration_cast<microseconds>(VirtualTime::now() - kBegin).count();
  for (size_t index = 0; index < length; ++index)
    hash_ = (hash_ ^ static_cast<uint8_t>(text[index])) * kPrime;
  hash_ = (hash_ ^ static_cast<uint64_t>(at_us)) * kPrime;
  if (prints_) std::printf("%10.6f %s\n", static_cast<double>(at_us) / 1e6, text.data());
}

}  // namespace braidfs::world
