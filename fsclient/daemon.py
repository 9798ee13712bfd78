"""Runs a mount in the background: the command waits until the mount serves, then leaves it running.

The parent reads one pipe: only a READY byte means success, a sentence means failure (printed on
stderr, after the exit code of mount(8)), and an end without either means that the child died. The
child's standard streams are on /dev/null. It becomes a session of its own once it serves, no
earlier: autofs lets only the process group that mounts pass a mountpoint that waits to be mounted
(systemd keeps mount(8) in its own for that), and an interrupt ends a mount that hangs.
"""

import os
import socket
import sys
from collections.abc import Callable

from fscommon.supervisor import notify_supervisor

from .keeper import SOCKET, become_keeper

EXIT_OK = 0
EXIT_USAGE = 1
EXIT_SYSTEM = 2
EXIT_MOUNT = 32
EXIT_INTERRUPTED = 130
EXIT_LEFT = 75  # the mount is left to the supervisor, which must start the next process
GENERATION = "BRAIDFS_GENERATION"  # environment variable: how often the mount was handed over

_READY = b"R"
_MESSAGE_SIZE_MAX = 4096


class Reporter:
    """The child's end of the pipe. Exactly one of ready() and failed() has an effect."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def ready(self) -> None:
        if self._fd >= 0:
            os.setsid()
        self._tell(_READY)

    def leaves(self) -> None:
        """The supervisor will start another process that goes on with the mount."""

    def failed(self, exit_code: int, message: str) -> None:
        self._tell(bytes([exit_code]) + message.encode(errors="replace")[:_MESSAGE_SIZE_MAX])

    def _tell(self, message: bytes) -> None:
        if self._fd >= 0:
            os.write(self._fd, message)
            os.close(self._fd)
            self._fd = -1


class ForegroundReporter(Reporter):
    """For a process without a parent: failures go to stderr, READY to a supervisor."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.exit_code = EXIT_OK

    def ready(self) -> None:
        notify_supervisor("READY=1")

    def leaves(self) -> None:
        self.exit_code = EXIT_LEFT

    def failed(self, exit_code: int, message: str) -> None:
        self.exit_code = exit_code
        sys.stderr.write(message + "\n")


def run_in_background(serve: Callable[[Reporter], None], mountpoint: str) -> int:
    """Forks. The child becomes the keeper, and its child runs serve(). The parent returns the exit
    code once the mount serves.

    Call it before any thread or event loop exists.
    """
    if "/" in sys.argv[0]:  # the next process has another directory
        sys.argv[0] = os.path.abspath(sys.argv[0])  # noqa: PTH100 - links stay: they are upgraded
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return _await_child(reading)
    os.close(reading)
    _fork_from_keeper(mountpoint)
    exit_code = EXIT_SYSTEM
    try:
        _leave_terminal()
        serve(Reporter(writing))
        exit_code = EXIT_OK
    finally:
        os._exit(exit_code)


def _fork_from_keeper(mountpoint: str) -> None:
    """Forks the client and returns in it; its parent holds the mount."""
    held, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        try:
            _leave_terminal()
            become_keeper(pid, held, mountpoint)
        finally:
            os._exit(EXIT_SYSTEM)  # the client serves in any case
    held.close()
    told.set_inheritable(True)  # kept over exec for fsclient.handover
    os.environ[SOCKET] = str(told.detach())


def _leave_terminal() -> None:
    """Puts standard streams on /dev/null, and leaves a directory that may be unmounted."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _await_child(fd: int) -> int:
    message = b""
    with os.fdopen(fd, "rb") as pipe:
        message = pipe.read(_MESSAGE_SIZE_MAX + 1)
    if message == _READY:
        return EXIT_OK
    if not message:
        sys.stderr.write("braidfs: the mount process died before it was ready; see its log\n")
        return EXIT_SYSTEM
    sys.stderr.write(message[1:].decode(errors="replace") + "\n")
    return message[0]
