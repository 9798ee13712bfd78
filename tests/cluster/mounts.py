"""Mounting and unmounting on this machine, the way a user does: mount(8), umount(8).

The mount helper makes the client a daemon; its pid is found by its command line, which names source
and mount point. This module knows nothing of servers.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.process import PATIENCE, command_of, is_gone, parent_of, stop_pid, wait_until

FSTYPE = "fuse.braidfs"
HELPER_LINK = Path(f"/sbin/mount.{FSTYPE}")
MOUNT_SECONDS_MAX = 90 * PATIENCE
UNMOUNT_SECONDS_MAX = 90 * PATIENCE


class MountError(Exception):
    """mount or umount failed; the message is what the command printed."""


@dataclass(frozen=True, slots=True)
class MountEntry:
    mountpoint: str
    fstype: str
    source: str


def cached_bytes(path: Path) -> int:
    """How many bytes of a file are in the kernel's page cache."""
    words = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def mount_entries() -> list[MountEntry]:
    """Every mount of this machine, from /proc/self/mountinfo."""
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]:
        before, after = line.split(" - ", 1)
        fstype, source = after.split(" ")[:2]
        octal = re.compile(r"\\([0-7]{3})")  # these stand for space, tab, newline and backslash
        mountpoint = octal.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        found.append(MountEntry(mountpoint, fstype, source))
    return found


def is_mounted(mountpoint: Path) -> bool:
    return any(entry.mountpoint == str(mountpoint) for entry in mount_entries())


def mount_command(source: str, mountpoint: Path, options: str) -> list[str]:
    """mount(8), or the helper itself.

    The helper itself is used with a sanitizer, because mount(8) hides LD_PRELOAD from it, and where
    tests of another checkout have just replaced the one in /sbin.
    """
    helper = Path(sys.prefix) / "bin" / f"mount.{FSTYPE}"
    if "LD_PRELOAD" in os.environ or HELPER_LINK.resolve() != helper.resolve():
        return [str(helper), source, str(mountpoint), "-o", options]
    return ["mount", "-t", FSTYPE, source, str(mountpoint), "-o", options]


def mount(source: str, mountpoint: Path, options: str, *, enter: tuple[str, ...] = ()) -> int:
    """Mounts and returns the pid of the client. `enter`: words that go before those of mount(8)."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    command = [*enter, *mount_command(source, mountpoint, options)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=MOUNT_SECONDS_MAX, check=False
    )
    if result.returncode != 0:
        raise MountError(f"{' '.join(command)}: exit {result.returncode}: {result.stderr.strip()}")
    pid = client_pid(mountpoint)
    if pid is None or not is_mounted(mountpoint):
        raise MountError(f"{' '.join(command)} returned 0, but no client serves {mountpoint}")
    return pid


def client_pid(mountpoint: Path) -> int | None:
    """The pid of the client that serves `mountpoint`, found by its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            command = command_of(int(folder.name))
            if str(mountpoint) in command and _is_client(command):
                return int(folder.name)
    return None


def end_keeper(pid: int) -> None:
    """Ends the keeper, so that the client of that pid is not started again when it is killed."""
    try:
        parent = parent_of(pid)
    except OSError:
        return
    if "fsclient.keeper" in command_of(parent):
        stop_pid(parent, signal.SIGKILL)


def kill_client(pid: int) -> None:
    """Kills the client of that pid for good: nobody goes on with its mount."""
    end_keeper(pid)
    stop_pid(pid, signal.SIGKILL)


def _is_client(command: list[str]) -> bool:
    programs = {Path(word).name for word in command[:2]}
    return bool(programs & {"mount.fuse.braidfs", "braidfs"})


def unmount(
    mountpoint: Path, *, lazy: bool = False, command: tuple[str, ...] = ("umount",)
) -> None:
    """Unmounts and waits for the end of the client. A lazy unmount does not wait, because the mount
    may be in use."""
    pid = client_pid(mountpoint)
    words = [*command, *(["-l"] if lazy else []), str(mountpoint)]
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=UNMOUNT_SECONDS_MAX, check=False
    )
    if result.returncode != 0:
        raise MountError(f"{' '.join(words)}: {result.stderr.strip()}")
    if pid is not None and not lazy and not wait_until(lambda: is_gone(pid), UNMOUNT_SECONDS_MAX):
        raise MountError(f"the client of {mountpoint} (pid {pid}) lives after umount")
