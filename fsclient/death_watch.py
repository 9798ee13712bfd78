"""Tells systemd that a client is dead whose process cannot end.

    python -I -m fsclient.death_watch PID <&PIPE

A killed client may leave a thread in the kernel, which waits for answers that only the next client
gives (fsclient.keeper). systemd starts the next one when the whole process has ended: each waits
for the other. This small process belongs to the same service, and looks at the client. If only the
first thread of the client has ended, it declares itself the service's main process and ends, so
that systemd starts the next client at once. The client has the other end of the pipe: it is closed
when the client has ended, or has become another program, which has a watch of its own. The unit
must have NotifyAccess=all and KillMode=process. docs/decisions/0034-survival.md.
"""

import os
import select
import signal
import subprocess
import sys
from typing import Final

from .keeper import LOOK_MS, LOOKS_TO_BELIEVE, first_thread_has_ended

START_TIMEOUT_S: Final = 20.0


def begin() -> None:
    """Has a process watch this one. Raises OSError."""
    watches, ends = os.pipe2(os.O_CLOEXEC)  # `ends` stays open as long as this program
    words = [sys.executable, "-I", "-m", "fsclient.death_watch", str(os.getpid())]
    try:
        subprocess.run(
            words, check=True, stdin=watches, start_new_session=True, timeout=START_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(ends)
        raise OSError(f"no watch over this process: {error}") from error
    finally:
        os.close(watches)


def _watch(pid: int) -> bool:
    """Waits until the client has ended (False), or is dead and cannot end (True)."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # POLLHUP is always reported
    looks = 0
    while looks < LOOKS_TO_BELIEVE:
        if poll.poll(LOOK_MS):
            return False
        looks = looks + 1 if first_thread_has_ended(pid) else 0
    return True


def _end_as_main_process() -> None:
    # Imported now: it costs memory, and is hardly ever needed.
    from fscommon.supervisor import notify_supervisor, supervisor_has_read  # noqa: PLC0415

    notify_supervisor(f"MAINPID={os.getpid()}")
    supervisor_has_read()
    os.kill(os.getpid(), signal.SIGKILL)


def main(words: list[str]) -> None:
    if os.fork():  # systemd becomes the parent of the other one, and so hears of its end
        return
    if _watch(int(words[0])):
        _end_as_main_process()


if __name__ == "__main__":
    main(sys.argv[1:])
