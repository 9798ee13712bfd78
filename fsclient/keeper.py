"""The keeper of a mount: a small process that holds its descriptors while the client lives.

    python -I -m fsclient.keeper SOCKET PID MOUNTPOINT

It is the client's parent, and only waits. The client gives it the descriptors of the kernel's
connection, the record of what is open, and the command line to start it again (Kept, by
fsclient.survival). If the client is killed, the kernel's connection continues to exist, requests
wait in it, and the keeper starts the program that is on the disk with all that. When the client
ends by itself, so does the keeper. docs/decisions/0034-survival.md. It imports nothing but the
standard library, so it costs a few MiB of memory. What the next client does is in
fsclient.handover.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import syslog
import time
from dataclasses import dataclass
from typing import Any, Final

SOCKET: Final = "BRAIDFS_KEEPER"  # environment variable: the client's end of the socket
HANDED: Final = "BRAIDFS_HANDED"  # as in fsclient.handover
GENERATION: Final = "BRAIDFS_GENERATION"
MESSAGE_SIZE_MAX: Final = 1 << 17
DESCRIPTORS_MAX: Final = 250
STARTS_MAX: Final = 20  # in a row, of clients that lived less than SERVED_S
SERVED_S: Final = 2.0
DELAY_S_MIN: Final = 0.05
DELAY_S_MAX: Final = 30.0
LOOK_MS: Final = 500
LOOKS_TO_BELIEVE: Final = 2


def state_file(state: dict[str, Any]) -> int:
    """Makes a file in memory, positioned at its beginning: the state as JSON, bytes in hexadecimal.
    No child inherits it unless that is set."""
    place = os.memfd_create("braidfs-handed", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(place), "wb") as file:
        file.write(json.dumps(state, default=bytes.hex).encode())
    os.lseek(place, 0, os.SEEK_SET)
    return place


@dataclass(frozen=True, slots=True)
class Kept:
    """The client's last message, and its descriptors: the record of what is open, then those of the
    kernel's connection."""

    said: dict[str, Any]
    fds: tuple[int, ...]


class Keeper:
    def __init__(self, end: socket.socket, pid: int) -> None:
        self._end: socket.socket | None = end
        self._pid = pid
        self._kept: Kept | None = None
        self._starts = 0  # in a row
        self._started_at = time.monotonic()
        self._is_told = False  # the present client has said that it serves
        self._dying: set[int] = set()  # killed clients of which the kernel keeps a thread

    def run(self) -> None:
        while self._is_to_go_on(self._watch()) and self._start_again():
            pass

    def _start_again(self) -> bool:
        """Starts the client, with pauses if it fails: memory or descriptors may be short, or the
        program is being replaced."""
        while self._starts < STARTS_MAX:
            delay_s = min(DELAY_S_MAX, DELAY_S_MIN * 2**self._starts) if self._starts else 0.0
            select.select((), (), (), delay_s)
            self._starts += 1
            try:
                self._begin()
            except OSError as error:
                _tell(f"the client cannot be started (attempt {self._starts}): {error}")
            else:
                return True
        _tell(f"the client could not be started {STARTS_MAX} times: the mount ends")
        return False

    def _watch(self) -> int:
        """Takes the client's messages until it ends; returns its exit status."""
        process = os.pidfd_open(self._pid)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if self._end is not None:
            poll.register(self._end, select.POLLIN)
        looks = 0
        while looks < LOOKS_TO_BELIEVE:
            ready = {fd for fd, _ in poll.poll(LOOK_MS)}
            if self._end is not None and self._end.fileno() in ready:
                if not self._take(self._end):
                    poll.unregister(self._end)
                    self._end.close()
                    self._end = None
            elif process in ready:
                os.close(process)
                return os.waitpid(self._pid, 0)[1]
            else:
                self._bury()
                looks = looks + 1 if first_thread_has_ended(self._pid) else 0
        os.close(process)
        self._dying.add(self._pid)
        return signal.SIGKILL

    def _bury(self) -> None:
        for pid in list(self._dying):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._dying.discard(pid)

    def _take(self, end: socket.socket) -> bool:
        """Takes one message. False: no more will come."""
        try:
            octets, fds, _, _ = socket.recv_fds(end, MESSAGE_SIZE_MAX, DESCRIPTORS_MAX)
        except OSError:
            return False
        if not octets:
            return False
        self._forget()
        self._kept = Kept(json.loads(octets), tuple(fds))
        self._is_told = True
        return True

    def _is_to_go_on(self, status: int) -> bool:
        """Whether to start the client again: it was killed, or it could not take over yet."""
        if time.monotonic() - self._started_at > SERVED_S and self._is_told:
            self._starts = 0
        failed = os.WIFSIGNALED(status) or (not self._is_told and os.WEXITSTATUS(status) != 0)
        return failed and self._kept is not None and self._starts < STARTS_MAX

    def _begin(self) -> None:
        assert self._kept is not None
        said, fds = self._kept.said, self._kept.fds
        state = {**said["state"], "record": fds[0], "fds": fds[1:]}
        with contextlib.ExitStack() as ends:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends.enter_context(theirs)
            failing = ends.enter_context(contextlib.ExitStack())
            failing.enter_context(ours)
            place = state_file(state)
            ends.callback(os.close, place)
            environment = {
                **os.environ,
                HANDED: f"{said['version']}:{place}",
                SOCKET: str(theirs.fileno()),
                GENERATION: str(state["generation"]),
            }
            for fd in (*fds, place, theirs.fileno()):
                os.set_inheritable(fd, True)
            self._started_at, self._is_told = time.monotonic(), False
            child = subprocess.Popen(
                said["words"],
                env=environment,
                close_fds=True,
                start_new_session=True,
                pass_fds=(*fds, place, theirs.fileno()),
                cwd="/",
            )
            failing.pop_all()
        self._pid, self._end = child.pid, ours
        child.returncode = 0  # this process waits for it

    def _forget(self) -> None:
        for fd in self._kept.fds if self._kept else ():
            os.close(fd)
        self._kept = None


def _tell(what: str) -> None:
    """Writes to the system's log: this process has no other."""
    syslog.openlog("braidfs-keeper", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, what)


def first_thread_has_ended(pid: int) -> bool:
    """Whether the first thread of a client has ended, so the client was killed. Other threads may
    wait in the kernel for answers that only the next client can give (a notification for a page
    that a READ has locked), and hold up the end of the process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs memory
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def become_keeper(pid: int, end: socket.socket, mountpoint: str) -> None:
    """Makes this process, the parent of the client `pid`, its keeper."""
    end.set_inheritable(True)
    words = [sys.executable, "-I", "-m", "fsclient.keeper", str(end.fileno()), str(pid), mountpoint]
    os.execv(sys.executable, words)


def main(words: list[str]) -> None:
    number, pid, _mountpoint = words
    with contextlib.suppress(PermissionError):
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Keeper(socket.socket(fileno=int(number)), int(pid)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
