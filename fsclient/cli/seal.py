"""braidfs seal, unseal: trees that nobody may change.

A sealed tree is one in which everything is immutable (chattr +i): each directory first, so that no
name comes into it behind the walk, then the files in it.
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
    """Sets the flag of everything below some paths, or clears it. A path leads to no other file
    system, and through no link."""

    def __init__(self, *, is_sealing: bool) -> None:
        self.sums = _Sums()
        self._is_sealing = is_sealing

    def set(self, path: str) -> bool:
        """Of one file or directory. False: it was not possible, which is counted."""
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
        given = bytearray(8)  # the kernel's long, of which it uses an int
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
        """Directories are seen to on the way, each before what is in it."""
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
        ("braidfs seal /data/runs/7/checkpoint-9000 --jobs 1", "One that is to stay."),
    ],
)
@_paths
@_jobs
@json_option
def seal(paths: tuple[str, ...], jobs: int, as_json: bool) -> int:
    """Make files, and whole trees, immutable: nobody, root included, may write, rename, remove or
    add anything until `braidfs unseal`.

    For data sets that are complete and checkpoints that are to stay; whoever has a file open for
    writing may go on writing it. Links are not followed and other file systems not entered. Ctrl-C
    stops it; begun again, it goes on with what is left. Only root may."""
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
    """Let files, and whole trees, that were sealed be changed again.

    Clears what `chattr +i` has set, too. Only root may."""
    return _run(paths, jobs, as_json=as_json, is_sealing=False)
