// Outcomes that cross the wire. Values below 1000 are Linux errno values. Values from 1000 on are
// BraidFS's own; fscommon/errors.py lists each with its errno and retry class, and a test in
// tests/wire compares the two. Pure: ANY THREAD.
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
  kDropped = 1015,
};

// The errno (positive) that applications see for a status.
constexpr int errno_of(Status status) noexcept {
  const auto code = static_cast<uint16_t>(status);
  return code < 1000 ? code : 5;  // EIO
}

// True when the same request may be sent again, because the server has done nothing.
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
