"""Case i by DeepSpeed's own program (`./dev bench data --deepspeed`).

ds_io writes and reads one swap file as DeepNVMe does: by libaio, O_DIRECT, in blocks of 1 MiB, of
which each of its threads has 32 in flight. Rates are its own. It does not call fsync, and BraidFS's
servers may have a file in memory that was read once: so two rows more have an fsync at the end, and
a file of which nothing is cached anywhere. Before it is timed, ds_io compares random bytes that it
wrote, and those of a file that it reads, with what read(2) gets.
"""

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.data.amounts import MIB, Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import NullPlace, Place
from tests.dev.build import build_lock
from tests.dev.extras import python_of
from tests.dev.steps import StepError, quiet_step

THREADS = (1, 2, 4)
DEPTH = 32
LOOPS = 8
SECONDS_MAX = 600
_BARS = (Bar(Than.LOCAL, 0.6),)
_SPEED = re.compile(r"^E2E (?:Read|Write) Speed = (\S+) GB/sec$", re.M)
_COMPILE = "from deepspeed.ops.op_builder import AsyncIOBuilder; AsyncIOBuilder().load()"


def _name(what: str, threads: int) -> str:
    return f"ds_io, {what}, {threads} thread{'s' if threads > 1 else ''}"


WRITTEN = _name("write, then fsync", THREADS[-1])
COLD = _name("read, nothing cached", THREADS[-1])


def _rows() -> Iterator[Row]:
    for what in ("write", "read"):
        for threads in THREADS:
            yield Row(_name(what, threads), "MB/s", _BARS)
    yield Row(WRITTEN, "MB/s")
    yield Row(COLD, "MB/s")


def need_compiler() -> None:
    """Raises StepError, which says what to install: DeepSpeed compiles its part for asynchronous
    I/O when it is first used."""
    why = "DeepSpeed compiles its asynchronous I/O"
    compiler = shutil.which("g++")
    if compiler is None:
        raise StepError(f"no g++ in PATH: {why} (Debian: g++)")
    python = sysconfig.get_paths()["include"]
    for header, package in (("libaio.h", "libaio-dev"), ("Python.h", "python3-dev")):
        line = [compiler, "-x", "c++", "-fsyntax-only", f"-I{python}", "-include", header]
        said = subprocess.run([*line, os.devnull], check=False, capture_output=True, timeout=60)
        if said.returncode:
            raise StepError(f"g++ finds no {header}: {why} (Debian: {package})")


def environment_of(python: str) -> dict[str, str]:
    """What ds_io needs: ninja comes with the packages, and what is compiled stays beside them."""
    folder = Path(python).parent
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TORCH_EXTENSIONS_DIR": str(folder.with_name("extensions")),
        "DS_ACCELERATOR": "cpu",
    }


def compile_for(python: str) -> None:
    """Compiles the asynchronous I/O of the DeepSpeed that this Python has: minutes for the first
    time. Raises StepError if a package of the system is missing."""
    need_compiler()
    environment = environment_of(python)
    if shutil.which("ninja", path=environment["PATH"]) is None:
        raise StepError(
            "no ninja in PATH: DeepSpeed compiles its asynchronous I/O (Debian: ninja-build)"
        )
    with build_lock():
        # Who compiles leaves a file until the end; torch waits without a limit for it to go.
        for left in Path(environment["TORCH_EXTENSIONS_DIR"]).rglob("lock"):
            left.unlink()
        quiet_step(
            "DeepSpeed's asynchronous I/O", [python, "-c", _COMPILE], environment=environment
        )


def ds_io(python: str, folder: Path, size: int, *words: str) -> str:
    """What it printed. Raises RuntimeError if it failed."""
    done = subprocess.run(
        [
            *(python, str(Path(python).with_name("ds_io")), "--folder", str(folder)),
            *("--io_size", str(size), "--block_size", "1M", "--queue_depth", str(DEPTH)),
            *words,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd="/",
        env={**os.environ, **environment_of(python)},
    )
    if done.returncode != 0:
        raise RuntimeError(f"ds_io {' '.join(words)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def rate_of(said: str) -> float:
    """MB/s, of what ds_io printed: its "GB" are GiB."""
    found = _SPEED.search(said)
    if found is None:
        raise RuntimeError(f"ds_io printed no speed: {said.strip()[-300:]}")
    return float(found[1]) * (1 << 30) / 1e6


def check_bytes(python: str, folder: Path, size: int) -> None:
    """Raises RuntimeError if what ds_io wrote or read differs from what read(2) gets. The file that
    it reads, of random bytes, stays."""
    for words in (("--use_accelerator_pin_memory",), ("--read",)):
        once = ("--validate", "--loops", "1", "--warmup_loops", "0")
        said = ds_io(python, folder, size, "--io_parallel", str(THREADS[-1]), *once, *words)
        if "Fail: correctness" in said or said.count("Pass: correctness") != 1:
            raise RuntimeError(f"ds_io {words[0]}: the bytes are not the same: {said[-300:]}")


def _run(python: str, place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    if isinstance(place, NullPlace):
        return values
    size = amounts.swap_bytes // 4 // MIB * MIB
    timed = partial(ds_io, python, place.folder, size, "--loops", str(LOOPS), "--io_parallel")
    check_bytes(python, place.folder, size)
    for threads in THREADS:
        os.sync()
        values[_name("write", threads)] = rate_of(timed(str(threads)))
        values[WRITTEN] = _with_fsync(place.folder, values[_name("write", threads)], size)
        values[_name("read", threads)] = rate_of(timed(str(threads), "--read"))
    place.chill()
    once = ("--io_parallel", str(THREADS[-1]), "--read", "--loops", "1", "--warmup_loops", "0")
    values[COLD] = rate_of(ds_io(python, place.folder, size, *once))
    return values


def _with_fsync(folder: Path, rate: float, size: int) -> float:
    """The rate of the loops that were just timed and of an fsync after them, in MB/s."""
    (file,) = folder.glob("_aio_write_*")
    began_s = time.monotonic()
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    count = LOOPS * size / 1e6
    return count / (count / rate + time.monotonic() - began_s)


def swap_files() -> Case:
    """Installs DeepSpeed, and compiles its asynchronous I/O; raises StepError if that cannot be."""
    need_compiler()
    python = python_of("bench", ("torch", "numpy", "deepspeed"))
    compile_for(python)
    run = partial(_run, python)
    return Case("deepspeed", "tensor offload, by ds_io", lambda _: tuple(_rows()), run)
