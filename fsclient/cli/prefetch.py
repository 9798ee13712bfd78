"""braidfs prefetch: reads trees into this machine's page cache, before the job that needs them.

A few threads read through the mount, so what is cached is held under a lease and is dropped when
somebody changes it. When it is run again, it skips quickly what is cached already.
"""

import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress, SpinnerColumn, TransferSpeedColumn

from .frame import EXIT_DONE, EXIT_FAILED, Command, json_option, show, warn
from .words import number, rate, size
from .workers import Failures, Workers, files_below

_PIECE: Final = 1 << 20


@dataclass(slots=True)
class Sums(Failures):
    files: int = 0
    bytes: int = 0

    def read(self, count: int) -> None:
        with self.mutex:
            self.bytes += count

    def done(self) -> None:
        with self.mutex:
            self.files += 1


@click.command(
    "prefetch",
    cls=Command,
    examples=[
        ("braidfs prefetch /data/train/shard-00*", "The files with which the next epoch begins."),
        ("braidfs prefetch /data/imagenet --jobs 16", "A whole tree, sixteen at a time."),
        ("braidfs prefetch --manifest first.txt", "The files that a list names."),
    ],
)
@click.argument("paths", nargs=-1)
@click.option(
    "--manifest",
    "--from",
    "listed",
    type=click.File("r"),
    metavar="FILE",
    help="A file with paths, one on each line; - is the standard input.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Files at a time."
)
@json_option
def prefetch(paths: tuple[str, ...], listed: Any, jobs: int, as_json: bool) -> int:
    """Read files, and all files below directories, into the page cache of this machine.

    Links are not followed and other file systems not entered. The kernel drops what does not fit
    into memory, so name no more than that. Ctrl-C stops it; when it is run again it continues
    quickly.
    """
    if not paths and listed is None:
        raise click.UsageError("name a PATH, or a list with --from")
    started, sums = time.monotonic(), Sums()
    workers = Workers(lambda path, is_over: _read(path, is_over, sums), jobs)
    with _shown(as_json) as progress:
        task = progress.add_task("", total=None)
        workers.go_through(
            _files(_all(paths, listed), sums), lambda: progress.update(task, completed=sums.bytes)
        )
    seconds = time.monotonic() - started
    for text in sums.failures:
        warn(text)
    show(
        {
            "files": sums.files,
            "bytes": sums.bytes,
            "failed": sums.failed,
            "seconds": round(seconds, 3),
        },
        as_json,
        lambda console: console.print(
            f"{number(sums.files)} files, {size(sums.bytes)}, {rate(sums.bytes, seconds)}"
            + (f", {number(sums.failed)} could not be read" if sums.failed else "")
        ),
    )
    return EXIT_FAILED if sums.failed else EXIT_DONE


def _shown(as_json: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
    )


def _all(paths: tuple[str, ...], listed: Any) -> Iterator[str]:
    yield from paths
    for line in listed or ():
        if path := line.rstrip("\n"):
            yield path


def _files(paths: Iterator[str], sums: Sums) -> Iterator[str]:
    """Yields regular files, also those below directories, in the order of the directories."""
    for path in paths:
        try:
            seen = os.lstat(path)
        except OSError as error:
            sums.fail(path, error)
            continue
        if stat.S_ISREG(seen.st_mode):
            yield path
        elif stat.S_ISDIR(seen.st_mode):
            yield from files_below(path, seen.st_dev, sums)


def _read(path: str, is_over: threading.Event, sums: Sums) -> None:
    piece = bytearray(_PIECE)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while not is_over.is_set() and (count := os.readv(file, [piece])):
                sums.read(count)
        finally:
            os.close(file)
    except OSError as error:
        sums.fail(path, error)
        return
    sums.done()
