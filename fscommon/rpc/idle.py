"""Idle: connections that nobody uses at the moment, kept for a while for whoever comes next."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

KEEP_S: Final = 5.0
IDLE_MAX: Final = 64

T = TypeVar("T")


class Idle(Generic[T]):
    """is_usable: whether the connection has not ended meanwhile."""

    def __init__(self, is_usable: Callable[[T], bool]) -> None:
        self._is_usable = is_usable
        self._rows: list[tuple[str, float, T]] = []  # since when; the longest first

    def keep(self, address: str, one: T) -> bool:
        """False: it cannot be used any more, or there are too many."""
        if len(self._rows) >= IDLE_MAX or not self._is_usable(one):
            return False
        self._rows.append((address, trio.current_time(), one))
        return True

    def take(self, address: str) -> T | None:
        """The one to this address that was used last."""
        for row in reversed(self._rows):
            if row[0] == address and self._is_usable(row[2]):
                self._rows.remove(row)
                return row[2]
        return None

    def next_end_s(self) -> float | None:
        """When the first one has been kept for long enough. None: there is none."""
        return self._rows[0][1] + KEEP_S if self._rows else None

    def take_old(self) -> list[T]:
        """Those that nobody has used for KEEP_S, and those that have ended."""
        now_s = trio.current_time()
        # The sum is that of next_end_s(): who waits until then finds something.
        is_old = [row[1] + KEEP_S <= now_s or not self._is_usable(row[2]) for row in self._rows]
        old = [row[2] for row, gone in zip(self._rows, is_old, strict=True) if gone]
        self._rows = [row for row, gone in zip(self._rows, is_old, strict=True) if not gone]
        return old
