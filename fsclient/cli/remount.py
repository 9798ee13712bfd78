"""`mount -o remount,ro` and `remount,rw`: what mount(8) asks its helper to do with an existing
mount.

The flags are the kernel's (ro, nosuid, noatime, ...), so mount(8) itself sets them, with the option
not to call a helper again. A remount to read-only writes out dirty data, and fails with EBUSY while
a file is open for writing. The options of the client stay those of the mount.
"""

import os
import subprocess
import sys
from typing import Final

from fscommon.config.mount_options import parse_mount_options
from fscommon.errors import ConfigError

from ..daemon import EXIT_MOUNT, EXIT_SYSTEM, EXIT_USAGE
from ..kernel import is_mounted

REMOUNT: Final = "remount"
_FLAGS: Final = frozenset(
    (
        "ro",
        "rw",
        "nosuid",
        "suid",
        "nodev",
        "dev",
        "noexec",
        "exec",
        "noatime",
        "atime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "nodiratime",
        "diratime",
        "sync",
        "async",
        "dirsync",
        "silent",
        "loud",
        "nosymfollow",
        "symfollow",
    )
)
# Options that the kernel shows for the mount and that mount(8) therefore passes again.
_SHOWN: Final = ("user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "blksize=")
_SECONDS_MAX: Final = 600.0


def is_remount(options: str) -> bool:
    return REMOUNT in options.split(",")


def remount(source: str, directory: str, options: str) -> int:
    """Remounts and returns an exit code of mount(8)."""
    words = [word for word in options.split(",") if word not in ("", REMOUNT)]
    try:
        parse_mount_options(",".join(word for word in words if not word.startswith(_SHOWN)))
    except ConfigError as error:
        return _fail(EXIT_USAGE, str(error))
    mountpoint = os.path.realpath(directory)
    if not is_mounted(mountpoint):
        return _fail(EXIT_MOUNT, f"cannot remount {directory}: no BraidFS is mounted there")
    flags = ",".join([REMOUNT, *(word for word in words if word in _FLAGS)])
    try:
        command = ["mount", "-i", "-o", flags, "--", source, mountpoint]
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _fail(EXIT_SYSTEM, f"cannot remount {directory}: {error}")
    if result.returncode:
        said = result.stderr.strip().splitlines() or [f"exit {result.returncode}"]
        return _fail(result.returncode, f"cannot remount {directory}: {said[0]}")
    return 0


def _fail(exit_code: int, message: str) -> int:
    sys.stderr.write(f"braidfs: {message}\n")
    return exit_code
