"""The supervisor of a program: systemd, or whoever else speaks sd_notify(3), sd_listen_fds(3).

Without one nothing here does anything. It may hold descriptors over the end of the process
(FDSTORE), and gives them to the next one.
"""

import array
import os
import select
import socket
from collections.abc import Sequence
from typing import Final

import trio

from fscommon.observe.log import Log

FIRST_DESCRIPTOR: Final = 3  # sd_listen_fds(3)
READ_TIMEOUT_MS: Final = 5000


def is_supervised() -> bool:
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify_supervisor(message: str, fds: Sequence[int] = ()) -> None:
    """sd_notify(3): one datagram to NOTIFY_SOCKET, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendmsg([message.encode()], rights, 0, address)
        except OSError as error:
            Log("service").warning("supervisor was not notified", error=error)


def supervisor_has_read() -> bool:
    """Waits until it has taken what it was told before (sd_notify_barrier(3)); blocks for a few
    seconds at most."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        notify_supervisor("BARRIER=1", [theirs])
        os.close(theirs)
        poll = select.poll()
        poll.register(ours, 0)  # POLLHUP comes unasked: it has closed its copy
        return bool(poll.poll(READ_TIMEOUT_MS))
    finally:
        os.close(ours)


def watchdog_seconds() -> float:
    """How often the supervisor wants to hear from this process; 0: not at all."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdigit()) or pid not in ("", str(os.getpid())):
        return 0.0
    return int(text) / 1e6


async def feed_watchdog() -> None:
    """The event loop turns: said twice in the time given, as sd_notify(3) says; not at all when
    nobody watches."""
    seconds = watchdog_seconds()
    while seconds > 0:
        notify_supervisor("WATCHDOG=1")
        await trio.sleep(seconds / 2)


def given_descriptors() -> list[tuple[str, int]]:
    """Names and descriptors that the supervisor held or opened for this process. Once: afterwards
    they are the caller's, no child inherits them, and the environment says nothing of them."""
    count = os.environ.pop("LISTEN_FDS", "")
    pid, names = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return []
    fds = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    words = names.split(":") if names else []
    return [(words[n] if n < len(words) else "unknown", fd) for n, fd in enumerate(fds)]
