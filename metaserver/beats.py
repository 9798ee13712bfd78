"""Beats for the active metaserver, so that others know that it lives, and it that it may answer.

A thread with a door of its own beats every BEAT_S: an append that takes long keeps nobody from
beating. It stops beating when the event loop has not turned for STUCK_S: a metaserver that answers
nobody must not keep the others from taking over.
"""

import threading
from collections.abc import Callable
from typing import Final

import trio

from metaserver.store.journal import FencedError, Head, Journal, JournalError
from metaserver.store.terms import BEAT_S, ActiveLease

STUCK_S: Final = 5.0
_TURN_S: Final = 0.5
_END_S_MAX: Final = 5.0


class Beats:
    """clock: as of the lease. Fenced: `deposed` is set."""

    def __init__(
        self, door: Journal, head: Head, lease: ActiveLease, clock: Callable[[], float]
    ) -> None:
        self.deposed = trio.Event()
        self._door = door
        self._head = head
        self._lease = lease
        self._clock = clock
        self._turned_s = clock()
        self._ends = threading.Event()

    async def run(self) -> None:
        """Beats until cancelled."""
        token = trio.lowlevel.current_trio_token()
        thread = threading.Thread(
            target=self._beat_on, args=(token,), name="journal beats", daemon=True
        )
        thread.start()
        try:
            while True:
                self._turned_s = self._clock()
                await trio.sleep(_TURN_S)
        finally:
            self._ends.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(thread.join, _END_S_MAX)

    def _beat_on(self, token: trio.lowlevel.TrioToken) -> None:
        while not self._ends.is_set():
            sent_s = self._clock()
            if sent_s - self._turned_s < STUCK_S and not self._beat(sent_s):
                token.run_sync_soon(self.deposed.set)
                return
            self._ends.wait(max(0.0, sent_s + BEAT_S - self._clock()))

    def _beat(self, sent_s: float) -> bool:
        """Returns whether this metaserver may still be the active one."""
        try:
            self._door.beat(self._head)
        except FencedError:
            return False
        except JournalError:
            return True  # the lease runs out, unless the next one succeeds
        self._lease.proven(sent_s)
        return True
