"""braidfs seal, unseal: trees that nobody may change.

In a sealed tree everything is immutable (chattr +i): each directory is sealed first, so that no
name is added behind the walk, then the files in it.
"""

import fcntl
import itertools
import os
import stat
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from fscommon.layout.attributes import INODE_IMMUTABLE

from ..fuse.structures import IOCTL_GET_FLAGS, IOCTL_SET_FLAGS
from .frame import EXIT_DONE, EXIT_FAILED, Command, json_option, show, warn
from .words import number
from .workers import Failures, Workers, files_below

_FLAGS: Final = struct.Struct("=I")


@dataclass(slots=True)
class _Sums(Failures):
    files: int = 0
    directories: int = 0
    unchanged: int = 0

    @property
    def seen(self) -> int:
        return self.files + self.directories + self.failed

    def done(self, mode: int, *, is_changed: bool) -> None:
        with self.mutex:
            if stat.S_ISDIR(mode):
                self.directories += 1
            else:
                self.files += 1
            self.unchanged += not is_changed


class _Walk:
    """Sets or clears the flag of everything below some paths. A path leads into no other file
    system, and through no link."""

    def __init__(self, *, is_sealing: bool) -> None:
        self.sums = _Sums()
        self._is_sealing = is_sealing

    def set(self, path: str) -> bool:
        """Sets the flag of one file or directory. False: it failed, which is counted."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                mode = os.fstat(file).st_mode
                is_changed = self._change(file)
            finally:
                os.close(file)
        except OSError as error:
            self.sums.fail(path, error)
            return False
        self.sums.done(mode, is_changed=is_changed)
        return True

    def _change(self, file: int) -> bool:
        given = bytearray(8)  # a long for the kernel, which uses an int of it
        fcntl.ioctl(file, IOCTL_GET_FLAGS, given)
        (flags,) = _FLAGS.unpack_from(given)
        wanted = flags | INODE_IMMUTABLE if self._is_sealing else flags & ~INODE_IMMUTABLE
        if wanted == flags:
            return False
        fcntl.ioctl(file, IOCTL_SET_FLAGS, _FLAGS.pack(wanted))
        return True

    def run(self, paths: tuple[str, ...], jobs: int, progress: Progress) -> None:
        task = progress.add_task("", total=None)
        Workers(lambda path, _is_over: self.set(path), jobs).go_through(
            itertools.chain.from_iterable(map(self._files, paths)),
            lambda: progress.update(task, completed=self.sums.seen),
        )

    def _files(self, top: str) -> Iterable[str]:
        """Yields the files; directories are handled on the way, each before what is in it."""
        try:
            seen = os.lstat(top)
        except OSError as error:
            self.sums.fail(top, error)
            return ()
        if stat.S_ISDIR(seen.st_mode):
            return files_below(top, seen.st_dev, self.sums, self.set)
        return (top,)


def _run(paths: tuple[str, ...], jobs: int, *, as_json: bool, is_sealing: bool) -> int:
    started, walk = time.monotonic(), _Walk(is_sealing=is_sealing)
    sums = walk.sums
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} done"),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
    ) as progress:
        walk.run(paths, jobs, progress)
    for text in sums.failures:
        warn(text)
    state = "sealed" if is_sealing else "not sealed"
    show(
        {
            "files": sums.files,
            "directories": sums.directories,
            "unchanged": sums.unchanged,
            "failed": sums.failed,
            "seconds": round(time.monotonic() - started, 3),
        },
        as_json,
        lambda console: console.print(
            f"{number(sums.files)} files and {number(sums.directories)} directories are {state}"
            + (f", {number(sums.unchanged)} were before" if sums.unchanged else "")
            + (f"; {number(sums.failed)} could not be changed" if sums.failed else "")
        ),
    )
    return EXIT_FAILED if sums.failed else EXIT_DONE


_paths = click.argument("paths", nargs=-1, required=True)
_jobs = click.option(
    "--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Files at a time."
)


@click.command(
    "seal",
    cls=Command,
    examples=[
        ("braidfs seal /data/imagenet", "A data set that is complete."),
        ("braidfs seal /data/runs/7/checkpoint-9000 --jobs 1", "A checkpoint to be kept."),
    ],
)
@_paths
@_jobs
@json_option
def seal(paths: tuple[str, ...], jobs: int, as_json: bool) -> int:
    """Make files and whole trees immutable: until `braidfs unseal` nobody, not even root, may
    write, rename, remove or add anything.

    Use it for complete data sets, and for checkpoints to be kept. A program that has a file open
    for writing may go on writing it. Links are not followed and other file systems not entered.
    Ctrl-C stops it; when it is run again it continues with the rest. Only root may do this.
    """
    return _run(paths, jobs, as_json=as_json, is_sealing=True)


@click.command(
    "unseal",
    cls=Command,
    examples=[("braidfs unseal /data/imagenet", "Before it is changed, or removed.")],
)
@_paths
@_jobs
@json_option
def unseal(paths: tuple[str, ...], jobs: int, as_json: bool) -> int:
    """Allow changes of sealed files and whole trees again.

    It also clears what `chattr +i` has set. Only root may do this.
    """
    return _run(paths, jobs, as_json=as_json, is_sealing=False)
