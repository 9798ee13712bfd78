"""Programs that read and write bytes on a mount while storage servers fail, as workers: fsx, fio
with verification, checkpoints of a training run, and epochs over small files.

Each compares all that it reads. READ and WRITE of the notes are what a program waited for: fsync,
close, rename and truncation count as writes.
"""

import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.cluster.process import PATIENCE
from tests.cluster.workers import READ, WRITE, Tools, Work, Worker

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1 << 20
ROUND_S_MAX: Final = 150.0 * PATIENCE
FSX_OPERATIONS: Final = 250
FIO_BYTES: Final = 12 * MIB
SMALL_FILES: Final = 80
SMALL_SIZES: Final = (300, 5_000, 30_000, 150_000)


class Seeded(Work):
    """may_be_full: a write may be told that there is no room."""

    def __init__(self, tools: Tools, seed: int, may_be_full: bool, size: int) -> None:
        super().__init__(tools)
        self.seed = seed
        self.chance = random.Random(seed)
        self.may_be_full = may_be_full
        self.size = size

    def ended(self, *words: str | Path) -> str:
        """Runs a program until its end. Returns what it said."""
        ended = subprocess.run(
            [*map(str, words)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=ROUND_S_MAX,
        )
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def whole(self, path: Path) -> bytes:
        """The bytes of a file, from the storage servers."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            pieces: list[bytes] = []
            while piece := self.timed(partial(os.read, fd, MIB), READ):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)


class Fsx(Seeded):
    """Two processes on one file."""

    def step(self, number: int) -> None:
        path, notes = self.folder / "fsx", self.tools.notes_path
        words = ("--operations", str(FSX_OPERATIONS), "--seed", str(self.seed + number))
        program = (sys.executable, "-m", "tests.stress.fsx")
        self.ended(*program, path, path, *words, "--notes", notes)


class Fio(Seeded):
    """Random writes to files that stay, through the kernel's cache and beside it in turns; all is
    read again and its sums are compared."""

    def step(self, number: int) -> None:
        is_direct = number % 2
        engine = ("--ioengine=libaio", "--iodepth=8") if is_direct else ("--ioengine=psync",)
        said = self.ended(
            "fio",
            "--name=verified",
            f"--directory={self.folder}",
            f"--aux-path={self.tools.notes_path.parent}",
            "--rw=randwrite",
            f"--size={FIO_BYTES}",
            "--numjobs=2",
            "--bsrange=4k-256k",
            f"--direct={is_direct}",
            *engine,
            "--fsync=24",
            "--end_fsync=1",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
            f"--randseed={self.seed + number}",
            "--group_reporting",
            "--output-format=json",
        )
        (job,) = json.loads(said[said.index("{") :])["jobs"]
        assert job["error"] == 0 and job["read"]["total_ios"] > 0, said
        now_s = time.monotonic()
        writes = max(_longest_s(job["write"]), _longest_s(job["sync"]))
        self.notes.add(now_s - writes, WRITE, now_s)
        self.notes.add(now_s - _longest_s(job["read"]), READ, now_s)


def _longest_s(row: dict[str, Any]) -> float:
    return float(row["lat_ns"].get("max", 0)) / 1e9


class Checkpoints(Seeded):
    """A rank: it writes a large file, syncs it, gives it its name, and reads it back."""

    def step(self, number: int) -> None:
        path, new = self.folder / f"checkpoint{number % 3}", self.folder / "new"
        content = self.chance.randbytes(self.size)
        try:
            self._write(new, content)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.may_be_full:
                raise
            return new.unlink()
        self.timed(lambda: new.rename(path), WRITE)
        self.kept[path.name] = hashlib.sha256(content).digest()
        self.synced += 1
        assert self.whole(path) == content, path

    def _write(self, path: Path, content: bytes) -> None:
        with self.timed(lambda: path.open("wb", buffering=0), WRITE) as file:
            at = 0
            while at < len(content):  # a disk that gets full takes less than it is given
                at += self.timed(partial(os.write, file.fileno(), content[at : at + MIB]), WRITE)
            self.timed(partial(os.fsync, file.fileno()), WRITE)
            self.timed(file.close, WRITE)


class Epochs(Seeded):
    """Small files that are read in another order each time."""

    def begin(self) -> None:
        self._order = [f"small{number}" for number in range(SMALL_FILES)]
        for name in self._order:
            content = self.chance.randbytes(self.chance.choice(SMALL_SIZES))
            (self.folder / name).write_bytes(content)
            self.kept[name] = hashlib.sha256(content).digest()

    def step(self, number: int) -> None:
        self.chance.shuffle(self._order)
        for name in self._order:
            if self.tools.stop.is_set():
                return
            content = self.whole(self.folder / name)
            assert hashlib.sha256(content).digest() == self.kept[name], name


PROGRAMS: Final[dict[str, tuple[type[Seeded], ...]]] = {
    "fsx": (Fsx,),
    "fio": (Fio,),
    "checkpoints": (Checkpoints, Checkpoints),
    "epochs": (Epochs,),
}


BEAR_ENOSPC: Final = ("checkpoints", "epochs")


def start(
    folder: Path, local: Path, names: list[str], seed: int, *, may_be_full: bool, size: int
) -> dict[str, Worker]:
    """The workers by name. size: of a checkpoint."""
    workers: dict[str, Worker] = {}
    for name in names:
        for number, kind in enumerate(PROGRAMS[name]):
            make: Callable[[Tools], Work] = partial(
                kind, seed=seed * 1000 + len(workers), may_be_full=may_be_full, size=size
            )
            full_name = f"{name}{number}"
            workers[full_name] = Worker(folder / full_name, local / full_name, make)
    return workers


def changed(folder: Path, kept: dict[str, bytes]) -> list[str]:
    """The names of files that have not the bytes of which these are the sums."""
    return [
        name
        for name, wanted in kept.items()
        if hashlib.sha256((folder / name).read_bytes()).digest() != wanted
    ]


def longest_s(worker: Worker, kind: bytes, since_s: float) -> float:
    """How long it has waited at most, since then."""
    waits = (row for row in worker.waits(since_s) if row.kind == kind)
    return max((row.ended_s - max(row.began_s, since_s) for row in waits), default=0.0)
