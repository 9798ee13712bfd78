// Outcomes that cross the wire. Below 1000: Linux errno values. From 1000: BraidFS's own,
// listed with their errno and retry class in fscommon/errors.py; tests/wire compares the two.
#pragma once
#include <cstdint>

namespace braidfs {

enum class Status : uint16_t {
  kOk = 0,
  kEintr = 4,
  kEio = 5,
  kEbadf = 9,
  kEagain = 11,
  kEnomem = 12,
  kEinval = 22,
  kEfbig = 27,
  kEnospc = 28,
  kErofs = 30,
  kEnosys = 38,
  kEopnotsupp = 95,
  kEtimedout = 110,

  kBadRequest = 1000,
  kNotReady = 1001,
  kBusy = 1002,
  kUnknownSession = 1003,
  kFenced = 1004,
  kBadCapability = 1005,
  kStaleIncarnation = 1006,
  kStaleMapEpoch = 1007,
  kStaleTruncateEpoch = 1008,
  kCorrupt = 1009,
  kNoObject = 1010,
  kNoTarget = 1011,
  kChecksum = 1012,
  kDisconnected = 1013,
  kAborted = 1014,
};

// The errno that applications see for a status (positive).
constexpr int errno_of(Status status) noexcept {
  const auto code = static_cast<uint16_t>(status);
  return code < 1000 ? code : 5;  // EIO
}

// True when the same request may be sent again because nothing was done.
constexpr bool retry_is_safe(Status status) noexcept {
  switch (status) {
    case Status::kNotReady:
    case Status::kBusy:
    case Status::kUnknownSession:
    case Status::kBadCapability:
    case Status::kStaleMapEpoch:
    case Status::kNoTarget:
    case Status::kChecksum:
      return true;
    default:
      return false;
  }
}

}  // namespace braidfs
