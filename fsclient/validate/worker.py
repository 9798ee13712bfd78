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
import select
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

from ..kernel import Mount, mount_table
from .tools import is_damage

PROTOCOL: Final = 5
TOOLS: Final = ("ior", "mdtest", "mpirun")
LINE_BYTES_MAX: Final = 1 << 20
OUTPUT_BYTES_MAX: Final = 8 << 20
CLEAN_TRIES: Final = 4
CLEAN_PAUSE_S: Final = 0.5
READY_SECONDS_MAX: Final = 120.0
DROP_SECONDS_MAX: Final = 120.0
DROP_FILE: Final = "/proc/sys/vm/drop_caches"
RESULTS_WORD: Final = "{results}"  # in a command: a folder for its results
LEFT_WORDS: Final = "files may be left: "
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


class Beginning:
    """Processes that wait for each other's nodes: prepare() starts them, begin() lets them go."""

    def __init__(self, processes: Processes, scratch: Path, limit_s: float) -> None:
        self._processes = processes
        self._out, self._errors = scratch / "replay-out", scratch / "replay-errors"
        self._limit_s = limit_s
        self._go = -1
        self._count = 0

    def prepare(self, action: str, given: dict[str, Any], count: int) -> None:
        """Raises WorkError when one ends before it is ready, or is too late."""
        ready, told = os.pipe()
        waits, self._go = os.pipe()
        self._count = count
        words = [sys.executable, "-m", "fsclient.validate.training.replay", action]
        words.append(json.dumps({**given, "ready": told, "go": waits}))
        try:
            with self._out.open("wb") as out, self._errors.open("wb") as errors:
                self._processes.start(words, out, errors, pass_fds=(told, waits))
        finally:
            os.close(told)
            os.close(waits)
        try:
            self._wait_until_ready(ready)
        finally:
            os.close(ready)

    def _wait_until_ready(self, ready: int) -> None:
        deadline, seen = time.monotonic() + READY_SECONDS_MAX, 0
        while seen < self._count:
            if not select.select([ready], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise WorkError(f"GPUs were not ready after {READY_SECONDS_MAX:.0f} s")
            found = os.read(ready, self._count)
            if not found:
                self._end()  # which raises, as it ended with an error
                raise WorkError("GPUs ended before they were ready")
            seen += len(found)

    def begin(self) -> Any:
        with contextlib.suppress(BrokenPipeError):  # it has ended: _end() tells why
            os.write(self._go, b"g" * self._count)
        return self._end()

    def _end(self) -> Any:
        os.close(self._go)
        (code,) = self._processes.wait(self._limit_s)
        if code:
            told = _text(self._errors).strip().splitlines() or [f"exit {code}"]
            raise WorkError(told[-1])
        return json.loads(_text(self._out))


class Worker:
    """Requests by name: each method takes a request's fields, and returns the reply."""

    def __init__(self) -> None:
        self.processes = Processes()
        self._scratch = Path(tempfile.mkdtemp(prefix="braidfs-validate-"))
        self._run: Path | None = None
        self._own: Path | None = None
        self._beginning: Beginning | None = None
        self._device = -1  # of the file system that the run is on

    def hello(self, path: str) -> dict[str, Any]:
        """Describes this node, and what is mounted at the path."""
        if not Path(path).is_dir():
            raise WorkError(f"{path} is not a directory")
        mount = mount_of(path)
        if mount is None:
            raise WorkError(f"nothing is mounted at {path}")
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
        self._device = Path(folder).parent.stat().st_dev
        Path(folder).mkdir(mode=0o700)
        self._run = Path(folder)
        return {}

    def join(self, folder: str, name: str) -> dict[str, Any]:
        """Makes this node's own folder in it."""
        if not Path(folder).is_dir():
            raise WorkError(f"{folder} is not there: this is not the file system of the others")
        self._device = Path(folder).parent.stat().st_dev
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

    def prepare(
        self, action: str, given: dict[str, Any], count: int, limit_s: float
    ) -> dict[str, Any]:
        """Starts emulated GPUs (training.replay); the reply says that all of them are ready."""
        self._beginning = Beginning(self.processes, self._scratch, limit_s)
        self._beginning.prepare(action, given, count)
        return {}

    def begin(self) -> dict[str, Any]:
        """Lets what was prepared begin; the reply has what each GPU told at its end."""
        if self._beginning is None:
            raise WorkError("nothing is prepared")
        begun, self._beginning = self._beginning, None
        return {"found": begun.begin()}

    def remove(self, folder: str) -> dict[str, Any]:
        """Removes a folder of this run, if it is there."""
        shutil.rmtree(folder, ignore_errors=True)
        return {}

    def drop(self, path: str) -> dict[str, Any]:
        """Writes back dirty pages and drops the kernel's caches of this node, if it may."""
        self._run_all([["sync", "-f", path]], DROP_SECONDS_MAX, dict(os.environ))
        words = ["sh", "-c", f"echo 3 2>/dev/null >{DROP_FILE}"]
        ((code, _, _),) = self._run_all([words], DROP_SECONDS_MAX, dict(os.environ))
        return {"is_dropped": code == 0}

    def dlio(self, words: list[str], folder: str, limit_s: float) -> dict[str, Any]:
        """Runs a command of DLIO; the reply has its results, and the bytes of its files."""
        results = self._scratch / "results"
        shutil.rmtree(results, ignore_errors=True)
        named = [word.replace(RESULTS_WORD, str(results)) for word in words]
        ((code, out, errors),) = self._run_all([named], limit_s, dict(os.environ))
        if code:
            told = (errors.strip() or out.strip()).splitlines() or [f"exit {code}"]
            raise WorkError(f"DLIO: {told[-1]}")
        found = {one.name: _text(one) for one in sorted(results.glob("*_output.json"))}
        sizes = (one.stat().st_size for one in Path(folder).rglob("*") if one.is_file())
        return {"results": found, "bytes": sum(sizes)}

    def clean(self) -> str:
        """Removes what this node made. Returns the folder of what may be left, else "". Other nodes
        may remove a folder while this one lists it."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        for _ in range(CLEAN_TRIES if self._own is not None else 0):
            shutil.rmtree(self._own, ignore_errors=True)  # type: ignore[arg-type]
            if _is_gone(self._own):  # type: ignore[arg-type]
                break
            threading.Event().wait(CLEAN_PAUSE_S)  # another node may be about to end its writes
        if self._run is not None:
            with contextlib.suppress(OSError):
                for left in self._run.glob("shared.*"):
                    left.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._run.rmdir()  # the last node can
        return "" if self._run is None or self._is_clean() else str(self._run)

    def _is_clean(self) -> bool:
        """Whether the own folder is gone, and not only the mount that it was on."""
        assert self._run is not None
        try:
            return self._run.parent.stat().st_dev == self._device and (
                self._own is None or _is_gone(self._own)
            )
        except OSError:
            return False

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


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the mount is gone, and the files may come back with it
    return False


def _drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def mount_of(path: str) -> Mount | None:
    """The mount that a path is on."""
    real = os.path.realpath(path)
    rows = (row for row in mount_table() if _is_below(real, row.mountpoint))
    return max(rows, key=lambda row: len(row.mountpoint), default=None)


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
        "prepare": worker.prepare,
        "begin": worker.begin,
        "drop": worker.drop,
        "remove": worker.remove,
        "dlio": worker.dlio,
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
        if left := worker.clean():
            sys.stderr.write(f"{LEFT_WORDS}{left}\n")
