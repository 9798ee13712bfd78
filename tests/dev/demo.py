"""`./dev demo`: everything in about two minutes, on one machine; what it prints is the proof.

A cluster of its own starts, stores a data set, serves epochs and checkpoints, loses a storage
server while it is read and written, reports that, gets the server back, is validated, and is
removed. Every step checks what it shows: the demo fails when a step does not happen as printed. It
needs root.
"""

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import make_plan, recorded
from tests.cluster.process import wait_until
from tests.dev.build import build, has_fuse
from tests.dev.steps import BUILD, StepError, console

FOLDER = BUILD / "demo"
READERS = 4
PIECE = 1 << 20
DOWN_SECONDS_MAX = 60.0
SETTINGS: dict[str, dict[str, object]] = {
    # A dead server is noticed soon.
    "metaserver": {"session_timeout_s": 10, "lease_duration_s": 10}
}


LOAD = """
while [ ! -e "$1/stop" ]; do
  head -c 4000000 /dev/urandom >"$1/wanted"
  { cp "$1/wanted" "$2/load" && sync "$2/load" && cmp "$1/wanted" "$2/load"; } 2>>"$1/errors"
  printf . >>"$1/rounds"
done
"""


class Demo:
    """`scale`: 1.0 takes two minutes; the test takes less."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._scale = scale
        self._cluster = Cluster(
            make_plan(folder / "state", storage_servers=2, targets=2, settings=SETTINGS)
        )
        self._mount = self._cluster.mount_path
        self.report = folder / "report.html"

    @property
    def mounted(self) -> bool:
        return mounts.is_mounted(self._mount)

    def run(self) -> None:
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("A metaserver, two storage servers with two targets each, a mount", self._up),
            ("A data set is copied in, and compared", self._copy),
            ("Two epochs: shuffled, from four readers", self._epochs),
            ("Checkpoints: written, synced, renamed", self._checkpoint),
            ("A storage server is killed while bytes are read and written", self._kill),
            ("Validation: patterns, checks, sizing", self._validate),
        )
        try:
            for number, (text, step) in enumerate(steps, 1):
                console.print(f"\n[bold]{number}. {text}[/]")
                step()
        finally:
            self._cluster.stop()
        self._say(f"all stopped; the report is {self.report}")

    def _up(self) -> None:
        self._cluster.start()
        self._say(f"mounted at {self._mount}")
        self._cli("status")

    # ---- bytes -------------------------------------------------------------------------------

    def _copy(self) -> None:
        source = self._folder / "data set"
        self._make(source)
        size = sum(path.stat().st_size for path in source.iterdir())
        with self._timed(size, "copied and synced"):
            self._shell("cp", "-r", source, self._mount / "set")
            os.sync()
        self._shell("diff", "-r", source, self._mount / "set")
        self._say(f"{len(list(source.iterdir()))} files are as they were")

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        piece = random.Random(1).randbytes(PIECE)
        for number in range(int(1000 * self._scale)):
            start = number * 997 % (PIECE // 2)
            (folder / f"sample-{number:05}").write_bytes(piece[start : start + 100_000])
        for number in range(int(8 * self._scale) + 1):
            with (folder / f"shard-{number}").open("wb") as file:
                for _ in range(32):
                    file.write(random.Random(number).randbytes(PIECE))

    def _epochs(self) -> None:
        self._cluster.remount()  # so the first one finds nothing in memory
        paths = sorted((self._mount / "set").iterdir())
        for epoch in (1, 2):
            random.Random(epoch).shuffle(paths)
            size = sum(path.stat().st_size for path in paths)
            with self._timed(size, f"epoch {epoch}"), ThreadPoolExecutor(READERS) as readers:
                assert sum(readers.map(_length, paths)) == size

    def _checkpoint(self) -> None:
        pieces = int(256 * self._scale) + 1
        for step in (1, 2):
            with self._timed(pieces * PIECE, f"step {step}"):
                fresh = self._mount / "checkpoint.new"
                digest = _write(fresh, pieces, seed=step)
                fresh.rename(self._mount / "checkpoint")
            if _digest(self._mount / "checkpoint") != digest:
                raise StepError("the checkpoint is not what was written")
        self._say("the last one is whole")

    # ---- a failure ---------------------------------------------------------------------------

    def _kill(self) -> None:
        victim = self._cluster.storageservers[1]
        with self._load() as rounds:
            victim.kill()
            self._say(f"{victim.name} was killed")
            self._wait_for_status(3, "the status did not say that a server is down")
            self._cli("status", code=3)
            victim.start()
            self._say(f"{victim.name} is back")
            done = rounds()
            if not wait_until(lambda: rounds() > done + 2, DOWN_SECONDS_MAX):
                raise StepError("reading and writing did not go on")
        self._say(f"{rounds()} rounds of writing, syncing and reading: not one error")
        self._wait_for_status(0, "the cluster is not well again")

    def _wait_for_status(self, code: int, otherwise: str) -> None:
        if not wait_until(lambda: self._code("status") == code, DOWN_SECONDS_MAX):
            raise StepError(otherwise)

    @contextmanager
    def _load(self) -> Iterator[Callable[[], int]]:
        """Writes, syncs and compares files until the block ends; yields a function that returns the
        rounds so far.

        It runs in a process of its own: a program that starts others waits for each file that it
        has open, because they close it, and closing waits for the dead server.
        """
        folder = self._folder / "load"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        words = ["sh", "-c", LOAD, "load", str(folder), str(self._mount)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)

        def rounds() -> int:
            return len(_text(folder / "rounds"))

        try:
            yield rounds
        finally:
            (folder / "stop").touch()
            process.wait(2 * DOWN_SECONDS_MAX)
        if errors := _text(folder / "errors"):
            raise StepError(f"reading or writing failed: {errors}")

    # ---- what an administrator sees -----------------------------------------------------------

    def _validate(self) -> None:
        size, seconds = f"{int(128 * self._scale) + 4}M", str(max(1, int(3 * self._scale)))
        self._cli(
            "validate",
            str(self._mount),
            "--size",
            size,
            "--seconds",
            seconds,
            "--files",
            "200",
            "--html",
            str(self.report),
        )

    def _cli(self, *words: str, code: int = 0) -> None:
        console.print(f"[dim]$ braidfs {' '.join(words)}[/]")
        found = self._code(*words, shown=True)
        if found != code:
            raise StepError(f"braidfs {words[0]}: exit {found}")

    def _code(self, *words: str, shown: bool = False) -> int:
        plan = self._cluster.plan
        environment = {
            **os.environ,
            "BRAIDFS_METASERVER": f"127.0.0.1:{plan.metaserver.port}",
            "BRAIDFS_KEY_FILE": str(plan.key_file),
            "BRAIDFS_ADMIN_CONFIG": "/nonexistent",
        }
        output = None if shown else subprocess.DEVNULL
        command = [str(BIN / "braidfs"), *words]
        return subprocess.run(
            command, check=False, env=environment, stdout=output, stderr=output, timeout=600
        ).returncode

    def _shell(self, *words: object) -> None:
        result = subprocess.run([*map(str, words)], check=False, timeout=600)
        if result.returncode != 0:
            raise StepError(f"{words[0]}: exit {result.returncode}")

    def _say(self, text: str) -> None:
        console.print(f"[green]✓[/] {text}", soft_wrap=True)

    @contextmanager
    def _timed(self, size: int, text: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        rate = size / 1e6 / seconds
        self._say(f"{text}: {size / 1e6:,.0f} MB in {seconds:.1f} s, {rate:,.0f} MB/s")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _length(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        piece, length = bytearray(PIECE), 0
        while count := file.readinto(piece):
            length += count
    return length


def _write(path: Path, pieces: int, seed: int) -> str:
    """Writes random pieces and syncs them; returns their digest."""
    digest, source = hashlib.sha256(), random.Random(seed)
    base = source.randbytes(2 * PIECE)
    with path.open("wb", buffering=0) as file:
        for number in range(pieces):
            start = number * 4099 % PIECE
            digest.update(base[start : start + PIECE])
            file.write(base[start : start + PIECE])
        os.fsync(file.fileno())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(folder: Path) -> None:
    """Removes what a demo left behind; never through a mount."""
    state = folder / "state"
    if (old := recorded(state)) is not None:
        Cluster(old).stop()
    for part in (state, folder / "data set", folder / "load"):
        shutil.rmtree(part, ignore_errors=True)


def demo(scale: float = 1.0, folder: Path = FOLDER) -> None:
    """Raises StepError when a step did not show what it says. The report stays in the folder."""
    if os.geteuid() != 0 or not has_fuse():
        raise StepError("./dev demo mounts a file system: it needs root and /dev/fuse")
    build()
    _remove(folder)
    started = time.monotonic()
    Demo(folder, scale).run()
    _remove(folder)
    console.print(f"\n{time.monotonic() - started:.0f} s in all")
