"""The supervisor of a program: systemd, or any other that speaks sd_notify(3) and sd_listen_fds(3).

Without a supervisor, nothing here has an effect. A supervisor may keep descriptors beyond the end
of the process (FDSTORE), and gives them to the next process.
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
    """Sends one datagram to NOTIFY_SOCKET, if there is one (sd_notify(3))."""
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
    """Waits until the supervisor has read all earlier messages (sd_notify_barrier(3)). Blocks for
    at most READ_TIMEOUT_MS. False: it has not."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        notify_supervisor("BARRIER=1", [theirs])
        os.close(theirs)
        poll = select.poll()
        poll.register(ours, 0)  # POLLHUP is always reported: the supervisor has closed its copy
        return bool(poll.poll(READ_TIMEOUT_MS))
    finally:
        os.close(ours)


def watchdog_seconds() -> float:
    """The interval, in seconds, in which the supervisor expects a sign of life; 0: none."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdigit()) or pid not in ("", str(os.getpid())):
        return 0.0
    return int(text) / 1e6


async def feed_watchdog() -> None:
    """Reports that the event loop turns, twice per interval, as sd_notify(3) advises; returns at
    once when nobody watches."""
    seconds = watchdog_seconds()
    while seconds > 0:
        notify_supervisor("WATCHDOG=1")
        await trio.sleep(seconds / 2)


def given_descriptors() -> list[tuple[str, int]]:
    """Names and descriptors that the supervisor held or opened for this process. Called once: after
    that they belong to the caller, no child inherits them, and the environment no longer names
    them."""
    count = os.environ.pop("LISTEN_FDS", "")
    pid, names = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return []
    fds = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)
    words = names.split(":") if names else []
    return [(words[n] if n < len(words) else "unknown", fd) for n, fd in enumerate(fds)]
