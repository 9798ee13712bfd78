"""The mountpoint in the kernel: checks before, tuning and unmounting after.

Nothing here may be called in the trio thread once the mount is served, except unmount(): a system
call on our own mount waits for this same program.
"""

import errno
import os
import subprocess
from pathlib import Path

import trio

from fscommon.errors import ConfigError

FILE_SYSTEM_TYPE = "fuse.braidfs"
LOOK_SECONDS_MAX = 2.0
UNMOUNT_SECONDS_MAX = 30.0


def check_mountpoint(mountpoint: str) -> None:
    """Raises ConfigError with one sentence. Unmounts what a dead client has left there."""
    path = Path(mountpoint)
    for line in mount_table():
        is_there = line.mountpoint == mountpoint and line.kind == FILE_SYSTEM_TYPE
        if is_there and not _bury(mountpoint):
            raise ConfigError(f"{mountpoint} is busy: {line.source} is mounted there already")
    try:
        is_directory = path.is_dir()
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"cannot use {mountpoint}: {error.strerror}") from error
    if not exists:
        raise ConfigError(f"the mountpoint {mountpoint} does not exist")
    if not is_directory:
        raise ConfigError(f"the mountpoint {mountpoint} is not a directory")


def _bury(mountpoint: str) -> bool:
    """Unmounts it if it is dead (ENOTCONN); programs that still use it get errors as before."""
    look = subprocess.Popen(
        ["stat", "--", mountpoint],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        _, said = look.communicate(timeout=LOOK_SECONDS_MAX)
    except subprocess.TimeoutExpired:  # the mount is alive, and slow: stat() may hang with it
        look.kill()
        return False
    if os.strerror(errno.ENOTCONN).encode() not in said:
        return False
    lazily = _unmount_commands(mountpoint)[-1]
    ended = subprocess.run(lazily, check=False, capture_output=True, timeout=UNMOUNT_SECONDS_MAX)
    return ended.returncode == 0


def check_device() -> None:
    """Raises ConfigError when this machine has no FUSE."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise ConfigError("there is no /dev/fuse: load the kernel module 'fuse'") from None
    except OSError as error:
        raise ConfigError(f"cannot use /dev/fuse: {error.strerror}") from error


def is_mounted(mountpoint: str) -> bool:
    return any(
        line.mountpoint == mountpoint and line.kind == FILE_SYSTEM_TYPE for line in mount_table()
    )


def raise_read_ahead(mountpoint: str, kib: int) -> None:
    """Lets the kernel read ahead that much. Call it in a thread: stat() asks our own mount."""
    device = Path(mountpoint).stat().st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    knob.write_text(f"{kib}\n")


async def unmount(mountpoint: str) -> None:
    """Unmounts, lazily if the mount is busy. It must still be served."""
    for command in _unmount_commands(mountpoint):
        result = await trio.run_process(command, check=False, capture_stderr=True)
        if result.returncode == 0:
            return


def _unmount_commands(mountpoint: str) -> list[list[str]]:
    if os.geteuid() == 0:
        return [["umount", "-i", mountpoint], ["umount", "-i", "-l", mountpoint]]
    return [["fusermount3", "-u", mountpoint], ["fusermount3", "-u", "-z", mountpoint]]


class Mount:
    """One line of /proc/self/mounts."""

    __slots__ = ("kind", "mountpoint", "source")

    def __init__(self, line: str) -> None:
        self.source, self.mountpoint, self.kind = map(unescape, line.split(" ")[:3])


def mount_table() -> list[Mount]:
    """The mounts that this process sees."""
    text = os.fsdecode(Path("/proc/self/mounts").read_bytes())  # names are bytes
    return [Mount(line) for line in text.split("\n") if line]


def unescape(word: str) -> str:
    """Decodes the octal form in which the kernel writes space, tab, newline and backslash."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, character)
    return word
