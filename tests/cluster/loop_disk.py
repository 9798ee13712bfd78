"""A disk of its own for a target: ext4 on a loop device, which fills up, hangs and loses power.

Hanging is fsfreeze(8): whoever writes waits in the kernel, without an error. A power cut is ext4's
own shutdown, after which nothing that it holds in memory reaches the device; then it is mounted
again, and its journal replayed.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_FLUSH = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH
SECONDS_MAX = 120


def _run(*words: str | Path) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True, timeout=SECONDS_MAX)


class LoopDisk:
    """point: where it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.point = folder / "disk"
        self._image = folder / "image"
        self._is_frozen = False

    def make(self, size: int, *options: str) -> None:
        self._image.touch()
        os.truncate(self._image, size)
        _run("mkfs.ext4", "-q", "-b", "4096", *options, self._image)
        self.point.mkdir()
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", self._image, self.point)

    def remove(self) -> None:
        self.thaw()
        _run("umount", "-l", self.point)

    def hold_target(self, cluster: Cluster, server: int, index: int = 0) -> None:
        """Moves the directory of a target here; nothing uses it meanwhile."""
        target = cluster.plan.target_path(cluster.plan.storageservers[server], index)
        (self.point / "target").mkdir()
        shutil.move(target, self.point / "target" / "moved")
        target.symlink_to(self.point / "target" / "moved")

    @property
    def _filler(self) -> Path:
        return self.point / "filler"

    def fill(self, left: int) -> None:
        """Leaves about so many bytes."""
        with self._filler.open("wb") as file:
            found = os.statvfs(self.point)
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - left)

    def clear(self) -> None:
        """Ends fill()."""
        self._filler.unlink()

    def freeze(self) -> None:
        _run("fsfreeze", "--freeze", self.point)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            _run("fsfreeze", "--unfreeze", self.point)
        self._is_frozen = False

    def cut_power(self) -> None:
        """Nobody uses it any more. What was not synced may be lost."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _WITHOUT_FLUSH)
        finally:
            os.close(fd)
        _run("umount", self.point)
        self._mount()


@contextmanager
def loop_disk(folder: Path, *options: str, size: int = 400 << 20) -> Iterator[LoopDisk]:
    """In a new folder. options: of mkfs.ext4. Its ENOSPC comes from the kernel."""
    folder.mkdir()
    disk = LoopDisk(folder)
    try:
        disk.make(size, *options)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop devices here: {error.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        disk.remove()
