"""What `./dev bench smoke` measures: one row a case, with its fio line and its least bar.

A write case runs on ext4 in two ways, buffered and O_DIRECT at depth 4, and the better one counts.
Every case ends with its bytes on stable storage. Reads are of bytes that are in the servers' page
cache (a pass before the first round puts them there), never in the client's: they use O_DIRECT, or
the client's cache is invalidated before.
"""

import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SMALL_COUNT = 64
SMALL_SIZE = 8 << 20
LARGE_FILE = f"f{SMALL_COUNT}"
LARGE_SIZE = 512 << 20
CREATE_PROCESSES = 4
CREATE_COUNT = 1500  # it is the number for each process

_SMALL_FILES = ":".join(f"f{number}" for number in range(SMALL_COUNT))
_BUFFERED = ("--direct=0", "--ioengine=psync")
_DIRECT = ("--direct=1", "--ioengine=libaio", "--iodepth=4")


@dataclass(frozen=True, slots=True)
class Case:
    """`ways` are the variants of the fio line; BraidFS and null FUSE run the first one."""

    name: str
    unit: str  # "op/s" or "MB/s"
    words: tuple[str, ...]
    ways: tuple[tuple[str, ...], ...] = ((),)
    least_of_null: float | None = None
    least_of_local: float | None = None
    least_value: float | None = None


def _random_read(jobs: int) -> tuple[str, ...]:
    return (
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
        "--ioengine=psync",
        "--file_service_type=random",
        f"--filename={_SMALL_FILES}",
        f"--filesize={SMALL_SIZE}",
        "--time_based",
        "--runtime=4",
        "--ramp_time=1",
        f"--numjobs={jobs}",
        "--thread",
    )


def _large(rw: str, block: str, *words: str) -> tuple[str, ...]:
    return (
        f"--rw={rw}",
        f"--bs={block}",
        f"--filename={LARGE_FILE}",
        f"--size={LARGE_SIZE}",
        *words,
    )


SMOKE = (
    Case("4 KiB random read, depth 1", "op/s", _random_read(1), least_of_null=0.35),
    Case("4 KiB random read, depth 32", "op/s", _random_read(32), least_of_null=0.4),
    Case("1 MiB sequential read", "MB/s", _large("read", "1m", "--invalidate=1"), (_BUFFERED,)),
    Case(
        "1 MiB sequential write, fsync",
        "MB/s",
        (
            "--rw=write",
            "--bs=1m",
            "--filename=f0-written",
            f"--size={LARGE_SIZE}",
            "--end_fsync=1",
            "--fallocate=none",
            "--unlink=1",
        ),
        (_BUFFERED, _DIRECT),
        least_of_local=0.4,
    ),
    Case(
        "4 KiB overwrite, O_DIRECT, fsync",
        "op/s",
        _large("randwrite", "4k", "--io_size=32m", "--end_fsync=1", "--overwrite=1"),
        (_DIRECT, _BUFFERED),
        least_of_local=0.3,
    ),
    Case(
        "4 KiB overwrite, fsync each",
        "op/s",
        _large("randwrite", "4k", "--io_size=2m", "--fsync=1", "--overwrite=1"),
        (("--direct=1", "--ioengine=psync"),),
    ),
    Case(
        "1 MiB overwrite, O_DIRECT, fsync",
        "MB/s",
        _large("write", "1m", "--end_fsync=1", "--overwrite=1"),
        (_DIRECT, _BUFFERED),
        least_of_local=0.3,
    ),
)
CREATES = Case("creates, 4 processes", "op/s", (), least_value=2000)


def prepare(folder: Path, *, local: bool) -> None:
    """The files that the reads and overwrites are about, on stable storage and read once."""
    piece = os.urandom(1 << 20)
    sizes = {f"f{number}": SMALL_SIZE for number in range(SMALL_COUNT)}
    for name, size in {**sizes, LARGE_FILE: LARGE_SIZE}.items():
        with (folder / name).open("wb") as file:
            for _ in range(size >> 20):
                file.write(piece)
            os.fsync(file.fileno())
    if not local:
        words = ["dd", "bs=1M", "iflag=direct", "of=/dev/null", "status=none"]
        for name in sizes:
            subprocess.run([*words, f"if={folder / name}"], check=True)


def run_fio(folder: Path, case: Case, way: tuple[str, ...]) -> float:
    """One run: operations a second, or MB/s."""
    # --directory applies to the names that come after it.
    words = ["fio", "--name=case", f"--directory={folder}", *case.words, *way]
    result = subprocess.run(
        [*words, "--output-format=json", "--group_reporting"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip() or result.stdout[-500:]}")
    job = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    side = job["read"] if job["read"]["total_ios"] else job["write"]
    seconds = _seconds_with_sync(job, side)
    if case.unit == "op/s":
        return float(side["total_ios"] / seconds)
    return float(side["io_bytes"] / seconds / 1e6)


def _seconds_with_sync(job: dict[str, dict[str, float]], side: dict[str, float]) -> float:
    # fio's own rate stops before the fsync at the end: job_runtime includes it.
    syncs = job.get("sync", {}).get("total_ios", 0)
    runtime = job["job_runtime"] if syncs else side["runtime"]
    return max(float(runtime), 1.0) / 1000  # type: ignore[arg-type]


def run_creates(folder: Path) -> float:
    """How many empty files are created, opened and closed a second, by four processes in a folder
    each."""
    folders = [
        folder / f"creates-{number}-{time.monotonic_ns()}" for number in range(CREATE_PROCESSES)
    ]
    for own in folders:
        own.mkdir()
    return CREATE_PROCESSES * CREATE_COUNT / timed(create_files, folders, CREATE_COUNT)


def create_files(folder: Path, count: int) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(count):
        os.close(os.open(f"{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def timed(work: Callable[[Path, int], None], folders: Sequence[Path], count: int) -> float:
    """Runs work(folder, count) in a process for each folder; returns the seconds from the moment
    when all are ready until the last one is done."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(len(folders) + 1)

    def start(folder: Path) -> None:
        ready.wait()
        work(folder, count)

    processes = [context.Process(target=start, args=(folder,)) for folder in folders]
    for process in processes:
        process.start()
    ready.wait()
    started = time.monotonic()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the benchmark failed")
    return time.monotonic() - started
