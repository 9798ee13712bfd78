// The kinds of events that native code tells Python (docs/INTERFACES.md section 3 has their
// meaning), and the levels of its log lines. fscommon/native.py has the same; a test in tests/wire
// compares the two. Constants: ANY THREAD.
#pragma once
#include <cstdint>

namespace braidfs {

enum class EventKind : uint8_t {
  kConnect = 1,
  kCommit = 2,
  kInterrupt = 3,
  kRelease = 4,
  kDone = 5,
  kUnmounted = 6,
  kLog = 7,
  kReopen = 8,
  kClosed = 9,    // by a storage server
  kCorrupt = 10,  // by a storage server
  kCall = 11,
  kAsk = 20,
  kChangesWait = 24,
  kCut = 25,
  kWriteInline = 26,
  kDropReplicas = 27,
  kSynced = 28,
};

enum class LogLevel : uint8_t {
  kDebug = 10,
  kNotice = 20,
  kWarning = 30,
  kError = 40,
};

}  // namespace braidfs
