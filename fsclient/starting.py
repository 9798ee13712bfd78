"""Signals that come before a mount serves: they end it, also while it waits for a metaserver.

A mount that is there already, and was handed over to this process, is not ended so: its users wait
for it, and signals wait until it serves them.
"""

import signal
from collections.abc import AsyncIterator, Container

import trio

from fscommon.errors import BraidError


class StartStoppedError(BraidError):
    """A signal has ended a mount before it was made."""


class Starting:
    """The time until a mount is made. ignored: signals that mean nothing before."""

    def __init__(self, ignored: Container[int]) -> None:
        self._ignored = ignored
        self._scope = trio.CancelScope()
        self._has_ended = trio.Event()

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Runs until end(). Raises KeyboardInterrupt at SIGINT, StartStoppedError at others."""
        with self._scope:
            async for number in signals:
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                if number not in self._ignored:
                    raise StartStoppedError(f"{signal.Signals(number).name} came before it served")
        self._has_ended.set()

    async def end(self) -> None:
        """After this another task gets the signals: the mount is about to be made. watch() was
        started."""
        self._scope.cancel()
        await self._has_ended.wait()
