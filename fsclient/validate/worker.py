"""The worker of one node: does what the driver requests, one JSON object a line, until its input
ends.

The driver starts it (`braidfs validate --worker`) on this machine or through ssh. Whatever ends it
(the driver's death, a lost connection, SIGTERM), it first kills what it started and removes its own
files. It has two threads: this one works, the other one reads requests and sees the end of the
input. The requests and their fields are the methods of `Worker`; errors are answered as {"error":
TEXT}.
"""

import contextlib
import json
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fscommon.machine import memory_bytes

from ..kernel import mount_table
from .tools import is_damage

PROTOCOL: Final = 4
TOOLS: Final = ("ior", "mdtest", "mpirun")
LINE_BYTES_MAX: Final = 1 << 20
OUTPUT_BYTES_MAX: Final = 8 << 20
WRONG_BYTES_EXIT: Final = 84  # EILSEQ: the exit code of fio and load.py when verification fails
Request = dict[str, Any]


class WorkError(Exception):
    """A request failed; the text is for people. is_damage: bytes were not as written."""

    def __init__(self, text: str, is_damage: bool = False) -> None:
        super().__init__(text)
        self.is_damage = is_damage


class Stopped(BaseException):
    """The driver is gone."""


class Processes:
    """The processes that a request started. stop() may be called on any thread, at any time."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_stopped = False

    def start(self, words: list[str], output: Any, errors: Any, **more: Any) -> None:
        with self._mutex:
            if self._is_stopped:
                raise Stopped
            self._running.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                    **more,
                )
            )

    def wait(self, seconds_max: float) -> list[int]:
        """Waits for exit codes, in the order of start(). Raises WorkError if one is too late."""
        deadline = time.monotonic() + seconds_max
        try:
            codes = [one.wait(max(0.1, deadline - time.monotonic())) for one in self._running]
        except subprocess.TimeoutExpired:
            self._kill()
            raise WorkError(f"not done after {seconds_max:.0f} s") from None
        finally:
            with self._mutex:
                self._running.clear()
        if self._is_stopped:
            raise Stopped
        return codes

    def stop(self) -> None:
        with self._mutex:
            self._is_stopped = True
            self._kill()

    def _kill(self) -> None:
        for one in self._running:
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)


class Worker:
    """Requests by name: each method takes a request's fields, and returns the reply."""

    def __init__(self) -> None:
        self.processes = Processes()
        self._scratch = Path(tempfile.mkdtemp(prefix="braidfs-validate-"))
        self._run: Path | None = None
        self._own: Path | None = None

    def hello(self, path: str) -> dict[str, Any]:
        """Describes this node, and what is mounted at the path."""
        if not Path(path).is_dir():
            raise WorkError(f"{path} is not a directory")
        real = os.path.realpath(path)
        mount = max(
            (row for row in mount_table() if _is_below(real, row.mountpoint)),
            key=lambda row: len(row.mountpoint),
        )
        room = os.statvfs(path)
        return {
            "protocol": PROTOCOL,
            "host": platform.node(),
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "fio": _version_of_fio(),
            "memory_bytes": memory_bytes(),
            "file_system": mount.kind,
            "source": mount.source,
            "tools": [name for name in TOOLS if shutil.which(name)],
            "bytes_available": room.f_bavail * room.f_frsize,
            "identity": _identity(path),
        }

    def make(self, folder: str) -> dict[str, Any]:
        """Makes the folder of the run; one node does this."""
        Path(folder).mkdir(mode=0o700)
        self._run = Path(folder)
        return {}

    def join(self, folder: str, name: str) -> dict[str, Any]:
        """Makes this node's own folder in it."""
        if not Path(folder).is_dir():
            raise WorkError(f"{folder} is not there: this is not the file system of the others")
        self._run, own = Path(folder), Path(folder, name)
        own.mkdir()
        self._own = own
        return {}

    def fio(
        self, job: str, environment: dict[str, str], options: list[str], limit_s: float
    ) -> dict[str, Any]:
        """Runs a job file; the reply has fio's own sums, and the size of each large file."""
        file = self._scratch / "job.fio"
        file.write_text(job)
        words = ["fio", "--output-format=json", *options, str(file)]
        ((code, out, errors),) = self._run_all([words], limit_s, {**os.environ, **environment})
        if code:
            told = errors.strip().splitlines() or out.strip().splitlines() or [f"exit {code}"]
            is_damage = "verify" in errors or f"err={WRONG_BYTES_EXIT}" in out
            raise WorkError(f"fio: {told[0]}", is_damage)
        found, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
        large = sorted(self._own.glob("large.*")) if self._own else []
        return {"job": found["jobs"][0], "sizes": [one.stat().st_size for one in large]}

    def load(self, action: str, given: list[dict[str, Any]], limit_s: float) -> dict[str, Any]:
        """Runs load.py once for each of given; the reply has what each printed."""
        program = [sys.executable, "-m", "fsclient.validate.load", action]
        commands = [[*program, json.dumps(one)] for one in given]
        replies = []
        for code, out, errors in self._run_all(commands, limit_s, dict(os.environ)):
            if code:
                told = (errors.strip().splitlines() or [f"exit {code}"])[-1]
                raise WorkError(f"{action}: {told}", is_damage=code == WRONG_BYTES_EXIT)
            replies.append(json.loads(out))
        return {"loads": replies}

    def tool(self, words: list[str], where: str, limit_s: float) -> dict[str, Any]:
        """Runs IOR or mdtest; the reply is its output. Drops cached pages of its files."""
        for path in Path(where).parent.glob(f"{Path(where).name}*"):
            if path.is_file():
                _drop_pages(path)
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        more = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}  # tasks wait for storage, not for cores
        ((code, out, errors),) = self._run_all([words], limit_s, {**os.environ, **as_root, **more})
        if is_damage(out + errors):
            raise WorkError("IOR read bytes that it had not written", is_damage=True)
        if code:
            told = errors.strip().splitlines() or out.strip().splitlines() or [f"exit {code}"]
            raise WorkError(f"{words[0]}: {told[-1]}")
        return {"output": out}

    def clean(self) -> None:
        """Removes what this node made. Other nodes may remove a folder while this one lists it."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
        if self._run is not None:
            with contextlib.suppress(OSError):
                for left in self._run.glob("shared.*"):
                    left.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._run.rmdir()  # the last node can

    def _run_all(
        self, commands: list[list[str]], seconds_max: float, environment: dict[str, str]
    ) -> list[tuple[int, str, str]]:
        """Runs the commands at once; returns exit code, output and errors of each."""
        places = [
            (self._scratch / f"out-{n}", self._scratch / f"errors-{n}")
            for n in range(len(commands))
        ]
        for words, (out, errors) in zip(commands, places, strict=True):
            with out.open("wb") as one, errors.open("wb") as two:
                try:
                    self.processes.start(words, one, two, cwd=self._scratch, env=environment)
                except FileNotFoundError:
                    raise WorkError(f"{words[0]} is not installed") from None
        codes = self.processes.wait(seconds_max)
        return [
            (code, _text(out), _text(errors))
            for code, (out, errors) in zip(codes, places, strict=True)
        ]


def _drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _is_below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(OUTPUT_BYTES_MAX).decode(errors="replace")


def _identity(path: str) -> str:
    """Inode number and time of birth of a directory: they differ in another file system."""
    words = ["stat", "--format=%i %W", "--", path]
    seen = subprocess.run(words, check=False, capture_output=True, text=True, timeout=20)
    return seen.stdout.strip()


def _version_of_fio() -> str:
    """The version of fio; empty if it is not installed."""
    try:
        words = ["fio", "--version"]
        seen = subprocess.run(words, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return seen.stdout.strip()


def _read_requests(requests: "queue.Queue[bytes]", processes: Processes) -> None:
    """Reads requests until the input ends: then the worker ends."""
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX):
        requests.put(line)
    processes.stop()
    requests.put(b"")


def _answer(worker: Worker, line: bytes) -> dict[str, Any]:
    request: Request = json.loads(line)
    known: dict[str, Callable[..., dict[str, Any]]] = {
        "hello": worker.hello,
        "make": worker.make,
        "join": worker.join,
        "fio": worker.fio,
        "load": worker.load,
        "tool": worker.tool,
    }
    work = known[request.pop("request")]
    try:
        return work(**request)
    except WorkError as error:
        return {"error": str(error), "is_damage": error.is_damage}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}", "is_damage": False}


def _end(*_: object) -> None:
    raise Stopped


def serve() -> None:
    """The program: returns when the driver is done or gone, with nothing left behind."""
    requests: queue.Queue[bytes] = queue.Queue(maxsize=4)
    worker = Worker()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    try:
        reading = (requests, worker.processes)
        threading.Thread(target=_read_requests, args=reading, daemon=True).start()
        while line := requests.get():
            sys.stdout.write(json.dumps(_answer(worker, line)) + "\n")
            sys.stdout.flush()
    except (Stopped, BrokenPipeError):
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        worker.processes.stop()
        worker.clean()
