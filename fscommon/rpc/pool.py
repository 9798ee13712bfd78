"""CallerPool: connections of which each is used by one task at a time, and then kept for the next
one for a while.

It is for requests that end with their connection: whoever gives one up closes what it was asked
over, and nobody else is concerned.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from fscommon.errors import FsError
from fscommon.rpc.caller import Caller
from fscommon.rpc.idle import Idle


class CallerPool:
    """open: connects to an address; the connection's run() is started here, among `tasks`."""

    def __init__(self, tasks: trio.Nursery, open: Callable[[str], Awaitable[Caller]]) -> None:
        self._tasks = tasks
        self._open = open
        self._idle: Idle[Caller] = Idle(lambda one: one.is_open)
        self._is_cleaned = False

    @asynccontextmanager
    async def of(self, address: str) -> AsyncIterator[Caller]:
        """A connection to this address. It is closed unless the body succeeds or raises FsError,
        which is an answer. Raises what `open` does."""
        caller = self._idle.take(address)
        if caller is None:
            caller = await self._open(address)
            self._tasks.start_soon(caller.run)
        was_answered = False
        try:
            yield caller
            was_answered = True
        except FsError:
            was_answered = True
            raise
        finally:
            if not was_answered or not self._idle.keep(address, caller):
                with trio.CancelScope(shield=True):
                    await caller.aclose()
            elif not self._is_cleaned:
                self._is_cleaned = True
                self._tasks.start_soon(self._clean)

    async def _clean(self) -> None:
        """Closes what nobody has used for a while, until nothing is left."""
        try:
            while (end_s := self._idle.next_end_s()) is not None:
                await trio.sleep_until(end_s)
                for caller in self._idle.take_old():
                    await caller.aclose()
        finally:
            self._is_cleaned = False
