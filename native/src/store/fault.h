// Named places in the code where tests provoke a crash.
//
// In production the hook is null, and a fault point costs one relaxed load. Tests install a hook
// that cuts the power of the simulated device; a test asserts that each point of the table was hit
// (rule 28).
//
// Threads: ANY THREAD. The hook is process-wide, so only one test uses it at a time.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace braidfs::store {

enum class FaultPoint : uint8_t {
  kWriteBeforeLog,
  kWriteAfterLog,
  kSyncBeforeBytes,
  kSyncAfterBytes,
  kSyncAfterCommit,
  kTruncateAfterLog,
  kTruncateAfterSync,
  kPunchAfterLog,
  kPunchBeforeRelease,
  kRemoveAfterLog,
  kRemoveAfterUnlink,
  kRotateAfterCreate,
  kCheckpointAfterRedo,
  kCheckpointAfterRedoSync,
  kCheckpointAfterPages,
  kCheckpointAfterPageSync,
  kCheckpointBeforeDrop,
  kSuperblockBeforeRename,
  kSuperblockAfterRename,
  kRecoverAfterReplay,
  kRecoverAfterTrim,
  kCount,
};

inline constexpr std::array<std::string_view, static_cast<size_t>(FaultPoint::kCount)> kFaultNames =
    {
        "write.before-log",        "write.after-log",
        "sync.before-bytes",       "sync.after-bytes",
        "sync.after-commit",       "truncate.after-log",
        "truncate.after-sync",     "punch.after-log",
        "punch.before-release",    "remove.after-log",
        "remove.after-unlink",     "rotate.after-create",
        "checkpoint.after-redo",   "checkpoint.after-redo-sync",
        "checkpoint.after-pages",  "checkpoint.after-page-sync",
        "checkpoint.before-drop",  "superblock.before-rename",
        "superblock.after-rename", "recover.after-replay",
        "recover.after-trim",
};

using FaultHook = void (*)(FaultPoint point);
inline std::atomic<FaultHook> fault_hook{nullptr};

inline void fault(FaultPoint point) {
  if (FaultHook hook = fault_hook.load(std::memory_order_relaxed)) hook(point);
}

}  // namespace braidfs::store
