"""Waits for the lanes: tokens of drain(), punch() and so on, and their DONE events.

Each token has one waiter. Touched by the trio thread only; the event reaper calls done().
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio
from outcome import Value

from fscommon.errors import FsError, Status

from .ports import Lanes

_BITS: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A place in a file, where a range of bytes begins."""

    ino: int
    begin: int


class Drains:
    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._token = 0
        self._waiting: dict[int, trio.lowlevel.Task] = {}

    async def drain(self, ino: int, *, sync: bool, commit: bool = False) -> None:
        """Waits until what was written to ino is at the targets (durable there if sync) and, if
        commit, until the metaserver knows size and time."""
        await self._wait(ino, lambda token: self._lanes.io.drain(token, ino, sync, commit))

    async def punch(self, ino: int, begin: int, end: int) -> None:
        """Makes a hole, which is durable afterwards."""
        await self._wait(ino, lambda token: self._lanes.io.punch(token, ino, begin, end))

    async def seek(self, ino: int, start: int, *, hole: bool) -> int:
        """Returns where the next data (or hole) begins; -1: there is none."""
        return await self._wait(ino, lambda token: self._lanes.io.seek(token, ino, start, hole))

    async def copy_reach(self, source: Extent, sink: Extent, length: int) -> int:
        """Returns how many bytes of the range servers can copy by themselves."""
        return await self._copy(source, sink, length, only_reach=True)

    async def copy(self, source: Extent, sink: Extent, length: int) -> int:
        """Has targets copy blocks, durably. Returns bits of the stripes that were written."""
        return await self._copy(source, sink, length, only_reach=False) & _BITS

    async def _copy(self, source: Extent, sink: Extent, length: int, *, only_reach: bool) -> int:
        def ask(token: int) -> None:
            self._lanes.io.copy(
                token, source.ino, source.begin, sink.ino, sink.begin, length, only_reach
            )

        return await self._wait(sink.ino, ask)

    async def barrier(self) -> None:
        """Waits until every lane has handled all that it has read from the kernel so far."""
        await self._wait(0, self._lanes.io.barrier)

    async def notified(self, start: Callable[[int], object], timeout_s: float) -> bool:
        """Starts notifications with a token and waits for them. False: they take longer."""
        with trio.move_on_after(timeout_s) as scope:
            await self._wait(0, start)
        return not scope.cancelled_caught

    async def _wait(self, ino: int, ask: Callable[[int], object]) -> int:
        self._token += 1
        token = self._token
        self._waiting[token] = trio.lowlevel.current_task()
        try:
            ask(token)
        except ValueError:
            del self._waiting[token]
            raise FsError(Status.EBADF, f"inode {ino} is not open") from None

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._waiting.pop(token, None)
            return trio.lowlevel.Abort.SUCCEEDED

        status, result = await trio.lowlevel.wait_task_rescheduled(abort)
        if status:
            raise FsError(_status(status), f"inode {ino}: the targets failed")
        return int(result)

    def done(self, token: int, status: int, result: int = 0) -> None:
        """A DONE event. It is ignored if its waiter was cancelled."""
        task = self._waiting.pop(token, None)
        if task is not None:
            trio.lowlevel.reschedule(task, Value((status, result)))

    def __len__(self) -> int:
        return len(self._waiting)


def _status(code: int) -> Status:
    try:
        return Status(abs(code))
    except ValueError:
        return Status.EIO
