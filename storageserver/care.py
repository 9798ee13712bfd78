"""Copies and scrubs take what clients leave of a target.

While a target has no clients, they take all of it. While it has, or the server from which bytes
come says that its target has, all of them together have one piece under way at that target, and
rest after each, so that they take PART of its time; half of that when the piece took much longer
than the best one lately: then clients wait for the device as well.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

PART: Final = 0.3  # of a target's time
SLOW: Final = 3.0  # times the best piece lately
REST_S_MAX: Final = 5.0
ELSEWHERE_S: Final = 0.25  # as long as a target is taken to have clients after one's request
_FORGET: Final = 1.01  # the best time of a piece becomes longer by this with each piece
_LOOK_S: Final = 0.05
_LEARN_BYTES: Final = 64 << 10  # the time of shorter pieces says nothing about the device


class Care:
    """has_clients(target): whether clients have asked for something there a moment ago."""

    def __init__(self, has_clients: Callable[[int], bool]) -> None:
        self._has_clients = has_clients
        self._paces: dict[int, Pace] = {}

    def of_target(self, target: int) -> "Pace":
        if target not in self._paces:
            self._paces[target] = Pace(lambda: self._has_clients(target))
        return self._paces[target]


class Pace:
    """Of one target."""

    def __init__(self, has_clients: Callable[[], bool]) -> None:
        self._has_clients = has_clients
        self._turn = trio.Lock()
        self._elsewhere_until = 0.0
        self._best: float | None = None  # seconds per byte

    def source_serves_clients(self) -> None:
        self._elsewhere_until = trio.current_time() + ELSEWHERE_S

    @asynccontextmanager
    async def piece(self, length: int) -> AsyncIterator[None]:
        """Inside, a piece of about this length is read or written."""
        if not self.makes_room():
            yield
            return
        async with self._turn:
            began = trio.current_time()
            yield
            await self._rest(trio.current_time() - began, length)

    def makes_room(self) -> bool:
        """Whether clients use the target, or that of the source."""
        return self._has_clients() or trio.current_time() < self._elsewhere_until

    async def _rest(self, took_s: float, length: int) -> None:
        part = PART / 2 if self._is_slow(took_s, length) else PART
        until = trio.current_time() + min(took_s * (1 / part - 1), REST_S_MAX)
        while (  # noqa: ASYNC110 - that clients have gone has no event
            left_s := until - trio.current_time()
        ) > 0 and self.makes_room():
            await trio.sleep(min(left_s, _LOOK_S))  # clients may go at any time

    def _is_slow(self, took_s: float, length: int) -> bool:
        if length < _LEARN_BYTES:
            return False
        each = took_s / length
        best = each if self._best is None else min(self._best * _FORGET, each)
        self._best = best
        return each > SLOW * best
