"""One detached program of a cluster: started, found again by its pid file, stopped by its pid.

A program is a session of its own, so no signal of the terminal reaches it. Its pid stands in
STATE/run/NAME.pid, its standard error in STATE/log/NAME.log; STATE/run/NAME.start starts it again.
A pid counts only while /proc/PID/cmdline still is the recorded one: a pid that the kernel gave to
somebody else is never signalled. What a program does is none of this module's business.
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Under emulation (tests/rdma/vm) everything takes longer.
PATIENCE = float(os.environ.get("BRAIDFS_TEST_PATIENCE", "1"))
READY_SECONDS_MAX = 60.0 * PATIENCE
STOP_SECONDS_MAX = 20.0 * PATIENCE
LOG_TAIL_LINES = 15


class ProcessError(Exception):
    """A program did not start or did not stop; the message holds the end of its log."""


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Polls `done` with short pauses; False when `seconds` passed first."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return True


def command_of(pid: int) -> list[str]:
    """The command line of a living process, empty for one that is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode(errors="surrogateescape") for word in raw.split(b"\0")[:-1]]


def parent_of(pid: int) -> int:
    """Raises OSError: it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def reap(pid: int) -> None:
    """Takes the exit of a child of ours; nothing for the children of others."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def is_gone(pid: int) -> bool:
    reap(pid)
    return not command_of(pid)


def stop_pid(pid: int, sign: signal.Signals = signal.SIGTERM) -> bool:
    """Signals a process and waits for its end; SIGKILL when it does not come. True: it obeyed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)
    if wait_until(lambda: is_gone(pid), STOP_SECONDS_MAX):
        return True
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), STOP_SECONDS_MAX)
    return False


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def write_script(path: Path, commands: str) -> None:
    path.write_text(f"#!/bin/sh\n{commands}")
    path.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Program:
    """Where one program of a cluster lives; holds no state but the pid file. enter: words that go
    before its own and that are gone when it runs, as those of nsenter."""

    name: str
    argv: tuple[str, ...]
    state: Path
    enter: tuple[str, ...] = ()

    @property
    def pid_path(self) -> Path:
        return self.state / "run" / f"{self.name}.pid"

    @property
    def log_path(self) -> Path:
        return self.state / "log" / f"{self.name}.log"

    def pid(self) -> int | None:
        """The pid of the running program, None when it does not run."""
        try:
            pid = int(self.pid_path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        reap(pid)
        return pid if self._is_mine(command_of(pid)) else None

    def _is_mine(self, command: Sequence[str]) -> bool:
        # The interpreter of a script comes first in /proc, --ready-fd between path and arguments.
        arguments = self.argv[1:]
        return self.argv[0] in command and tuple(command[-len(arguments) :]) == arguments

    def start(self, *, ready: bool = True) -> int:
        """Starts it unless it runs; with `ready`, waits until it wrote READY to its --ready-fd."""
        running = self.pid()
        if running is not None:
            return running
        reader, writer = os.pipe()
        try:
            process = self._spawn(writer if ready else None)
            os.close(writer)
            writer = -1
            self.pid_path.write_text(f"{process.pid}\n")
            if ready:
                self._wait_ready(reader)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        process.returncode = 0  # it is detached: its exit is taken by reap()
        return process.pid

    def _spawn(self, ready_fd: int | None) -> "subprocess.Popen[bytes]":
        for folder in (self.pid_path.parent, self.log_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._write_start()
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self.enter + (self.argv if ready_fd is None else self._with_ready_fd(ready_fd)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=() if ready_fd is None else (ready_fd,),
                cwd="/",
            )

    @property
    def start_path(self) -> Path:
        return self.state / "run" / f"{self.name}.start"

    def _write_start(self) -> None:
        """For people: a script that starts it again as it was, in the background."""
        pid, log = shlex.quote(str(self.pid_path)), shlex.quote(str(self.log_path))
        words = shlex.join((*self.enter, *self.argv))
        write_script(
            self.start_path,
            f"""\
pid=$(cat {pid} 2>/dev/null)
if [ -n "$pid" ] && grep -qF -- {shlex.quote(self.argv[-1])} "/proc/$pid/cmdline" 2>/dev/null; then
    echo "{self.name} runs already (pid $pid)"
    exit 0
fi
cd /
setsid {words} < /dev/null >> {log} 2>&1 &
echo $! > {pid}
echo "{self.name} was started (pid $!); its log is {log}"
""",
        )

    def _with_ready_fd(self, ready_fd: int) -> tuple[str, ...]:
        # Before the recorded words, so that a running program is known by its last ones.
        return (self.argv[0], "--ready-fd", str(ready_fd), *self.argv[1:])

    def _wait_ready(self, reader: int) -> None:
        readable, _, _ = select.select([reader], [], [], READY_SECONDS_MAX)
        answer = os.read(reader, 16) if readable else b""
        if answer.startswith(b"READY"):
            return
        reason = "ended before it was ready" if readable else "is not ready after a minute"
        self.stop()
        raise ProcessError(
            f"{self.name} {reason}; the end of {self.log_path}:\n{tail(self.log_path)}"
        )

    def signal(self, sign: signal.Signals) -> None:
        pid = self.pid()
        if pid is None:
            raise ProcessError(f"{self.name} is not running")
        os.kill(pid, sign)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        pid = self.pid()
        if pid is None:
            raise ProcessError(f"{self.name} is not running")
        os.kill(pid, signal.SIGKILL)
        if not wait_until(lambda: is_gone(pid), STOP_SECONDS_MAX):
            raise ProcessError(f"{self.name} (pid {pid}) survived SIGKILL")
        self.pid_path.unlink(missing_ok=True)

    def stop(self) -> bool:
        """SIGTERM and wait; False when it had to be killed."""
        pid = self.pid()
        obeyed = stop_pid(pid) if pid is not None else True
        self.pid_path.unlink(missing_ok=True)
        return obeyed
