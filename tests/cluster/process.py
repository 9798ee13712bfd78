"""One detached program of a cluster: started, found again by its pid file, stopped by its pid.

A program has a session of its own, so no signal of the terminal reaches it. Its pid is in
STATE/run/NAME.pid, its standard error in STATE/log/NAME.log; STATE/run/NAME.start starts it again.
A pid counts only while /proc/PID/cmdline is still the recorded one, so that a process to which the
kernel gave the pid later is never signalled. This module does not know what a program does.
"""

import contextlib
import multiprocessing
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

# Under emulation (tests/rdma/vm) everything takes longer.
PATIENCE = float(os.environ.get("BRAIDFS_TEST_PATIENCE", "1"))
READY_SECONDS_MAX = 60.0 * PATIENCE
STOP_SECONDS_MAX = 20.0 * PATIENCE
START_APART_SECONDS_MAX = READY_SECONDS_MAX + 10
LOG_TAIL_LINES = 15
_APART = multiprocessing.get_context("forkserver")


class ProcessError(Exception):
    """A program did not start or did not stop; the message has the end of its log."""


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
    """The command line of a living process, empty for one that has ended or is a zombie."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode(errors="surrogateescape") for word in raw.split(b"\0")[:-1]]


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc(5) counts it as the third). Raises
    OSError if the process has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    """The pid of the parent. Raises OSError if the process has ended."""
    return int(stat_of(pid)[1])


def reap(pid: int) -> None:
    """Reaps a child of this process; does nothing for the children of others."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def is_gone(pid: int) -> bool:
    """Whether the process and all its threads have ended. A process that is killed loses its
    command line while its threads still keep its sockets and locks."""
    reap(pid)
    try:
        fields = stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    state, threads = fields[0], int(fields[17])
    return state in ("Z", "X") and threads <= 1


def stop_pid(pid: int, sign: signal.Signals = signal.SIGTERM) -> bool:
    """Signals a process and waits for its end; sends SIGKILL if it does not end. True if the signal
    ended it."""
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
    """The commands are those of bash, which can close descriptors of any number."""
    path.write_text(f"#!/bin/bash\n{commands}")
    path.chmod(0o755)


def prepare_apart() -> None:
    """Makes the process of which Program.start_apart() forks."""
    forkserver.ensure_running()


@dataclass(frozen=True, slots=True)
class Program:
    """The place of one program of a cluster; it has no state but the pid file. `enter`: words that
    go before the program's own and that are not part of its command line when it runs, like those
    of nsenter."""

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
        # In /proc the interpreter of a script comes first, and --ready-fd is between path and
        # arguments.
        arguments = self.argv[1:]
        return self.argv[0] in command and tuple(command[-len(arguments) :]) == arguments

    def start(self, *, ready: bool = True) -> int:
        """Starts the program unless it runs; with `ready`, waits until it wrote READY to its
        --ready-fd."""
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
        process.returncode = 0  # it is detached, so reap() takes its exit status
        return process.pid

    def start_apart(self) -> None:
        """Starts the program from a process that has none of the files of this one. A child of this
        process closes them before it executes the program, and the close of a file of a mount that
        was written may wait for the very metaserver that is to be started. Call prepare_apart()
        before such a file is open. Raises ProcessError."""
        child = _APART.Process(target=self.start)
        child.start()
        child.join(START_APART_SECONDS_MAX)
        if child.exitcode != 0:
            raise ProcessError(f"{self.name} was not started: exit status {child.exitcode}")

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
        """Writes a script for people that starts the program again, as it was, in the background.
        The program gets no descriptors of whoever runs the script: one of them may be of a file in
        the mount, or the end of a pipe that somebody reads."""
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
(
    for path in /proc/$BASHPID/fd/*; do
        number=${{path##*/}}
        if ((number > 2)); then exec {{number}}>&-; fi
    done
    exec setsid {words}
) < /dev/null >> {log} 2>&1 &
echo $! > {pid}
echo "{self.name} was started (pid $!); its log is {log}"
""",
        )

    def _with_ready_fd(self, ready_fd: int) -> tuple[str, ...]:
        # These words go before the recorded ones, because a running program is found by its last
        # words.
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
        """Sends SIGKILL, and waits until the process has ended."""
        pid = self.pid()
        if pid is None:
            raise ProcessError(f"{self.name} is not running")
        os.kill(pid, signal.SIGKILL)
        if not wait_until(lambda: is_gone(pid), STOP_SECONDS_MAX):
            raise ProcessError(f"{self.name} (pid {pid}) survived SIGKILL")
        self.pid_path.unlink(missing_ok=True)

    def stop(self) -> bool:
        """Sends SIGTERM and waits; False when it had to be killed."""
        pid = self.pid()
        obeyed = stop_pid(pid) if pid is not None else True
        self.pid_path.unlink(missing_ok=True)
        return obeyed
