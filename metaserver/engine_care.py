"""The care that a journal's engine needs, from the active metaserver alone.

It happens in a thread with a door of its own: what the engine does may last for a minute, and
nobody waits for its end.
"""

import threading
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import trio

from fscommon.observe.log import Log, RateLimit
from metaserver.store.journal import FencedError, Head, Journal, JournalError

CARE_S: Final = 5.0
_LOG_S: Final = 300.0


@runtime_checkable
class NeedsCare(Protocol):
    """A journal whose engine needs care."""

    def care(self, head: Head) -> Sequence[str]:
        """Does what is needed now, if it is the turn of `head`, and returns what that was."""
        ...


async def care_for_engine(door: Journal, head: Head, log: Log) -> None:
    """Until cancelled. The door is closed then, or when the call in work ends."""
    ends = threading.Event()
    try:
        await trio.to_thread.run_sync(_care, door, head, log, ends, abandon_on_cancel=True)
    finally:
        ends.set()


def _care(door: Journal, head: Head, log: Log, ends: threading.Event) -> None:
    failures = RateLimit(_LOG_S)
    try:
        while isinstance(door, NeedsCare) and not ends.is_set():
            try:
                for said in door.care(head):
                    log.info("care for the journal's engine", done=said)
            except FencedError:
                return
            except JournalError as error:
                suppressed = failures.permit()
                if suppressed is not None:
                    log.warning(
                        "no care for the journal's engine", error=error, suppressed=suppressed
                    )
            ends.wait(CARE_S)
    finally:
        door.close()
