"""Waiting for the lanes: tokens of drain() and their DONE events.

One waiter per token. Touched by the trio thread only; the event reaper calls done().
"""

import trio
from outcome import Value

from fscommon.errors import FsError, Status

from .ports import Lanes


class Drains:
    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._token = 0
        self._waiting: dict[int, trio.lowlevel.Task] = {}

    async def drain(self, ino: int, *, sync: bool) -> None:
        """Until what was written to ino is at the targets (durable there if sync)."""
        self._token += 1
        token = self._token
        self._waiting[token] = trio.lowlevel.current_task()
        self._lanes.drain(token, ino, sync)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._waiting.pop(token, None)
            return trio.lowlevel.Abort.SUCCEEDED

        status = await trio.lowlevel.wait_task_rescheduled(abort)
        if status:
            raise FsError(_status(status), f"inode {ino} could not be drained")

    def done(self, token: int, status: int) -> None:
        """A DONE event; one whose waiter was cancelled is nobody's."""
        task = self._waiting.pop(token, None)
        if task is not None:
            trio.lowlevel.reschedule(task, Value(status))

    def __len__(self) -> int:
        return len(self._waiting)


def _status(code: int) -> Status:
    try:
        return Status(abs(code))
    except ValueError:
        return Status.EIO
