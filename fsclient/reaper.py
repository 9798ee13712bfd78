"""The task that takes events from the native lanes and passes each to its handler.

An eventfd becomes readable, reap() returns what is queued; each event is handled synchronously, so
that one turn of the loop handles a whole batch. docs/INTERFACES.md 3.1 has the table of events.
Touched by the trio thread only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from fscommon.native import EventKind
from fscommon.native_ports import EventRow, IoPort
from fscommon.observe.log import Log

REAP_COUNT_MAX = 256
BATCHES_AT_ONCE_MAX = 64


class Listener(Protocol):
    """A user of what lanes report, who calls listen() before."""

    listen: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Handlers:
    """connect(node, lane), commit(token, ino, size, mtime_ns, payload), interrupt(slot),
    release(fh, ino), done(token, status, result), unmounted(), reopen(ino, writable), ask(ino,
    end), write_inline(ino, offset, mtime_ns, payload), call(slot, ino, opcode, outcome, payload),
    cut(number, ino, size, mtime_ns, payload), drop_replicas(ino, payload), synced(ino)."""

    connect: Callable[[int, int], None]
    commit: Callable[[int, int, int, int, bytes], None]
    interrupt: Callable[[int], None]
    release: Callable[[int, int], None]
    done: Callable[[int, int, int], None]
    unmounted: Callable[[], None]
    reopen: Callable[[int, bool], None]
    call: Callable[[int, int, int, int, bytes], None]
    ask: Callable[[int, int], None]
    write_inline: Callable[[int, int, int, bytes], None]
    changes_wait: Callable[[], None]
    cut: Callable[[int, int, int, int, bytes], None]
    drop_replicas: Callable[[int, bytes], None]
    synced: Callable[[int], None]
    listener: Listener | None = None


class Reaper:
    def __init__(self, source: IoPort, handlers: Handlers) -> None:
        self._source = source
        self._handlers = handlers
        self._log = Log("lanes")
        self.reaped_count = 0
        if handlers.listener is not None:
            handlers.listener.listen = self.reap_waiting

    async def run(self) -> None:
        fd = self._source.events_fd()
        while True:
            await trio.lowlevel.wait_readable(fd)
            while self.reap_batch() == REAP_COUNT_MAX:
                await trio.lowlevel.checkpoint()

    def reap_waiting(self) -> None:
        """Handles all events so far, also those that would be reported a little later."""
        for _ in range(BATCHES_AT_ONCE_MAX):
            if self.reap_batch() < REAP_COUNT_MAX:
                break

    def reap_batch(self) -> int:
        events = self._source.reap(REAP_COUNT_MAX)
        for event in events:
            try:
                self._dispatch(event)
            except Exception:  # one bad event must not end the mount
                self._log.exception("an event of the lanes could not be handled", kind=event.kind)
        self.reaped_count += len(events)
        return len(events)

    def _dispatch(self, event: EventRow) -> None:
        kind, token, ino, a, b = event.kind, event.token, event.ino, event.a, event.b
        to = self._handlers
        if kind == EventKind.RELEASE:
            to.release(a, ino)
        elif kind == EventKind.COMMIT:
            to.commit(token, ino, a, b, event.payload)
        elif kind == EventKind.CALL:
            to.call(token, ino, a, b, event.payload)
        elif kind == EventKind.DONE:
            to.done(token, a, b)
        elif kind == EventKind.INTERRUPT:
            to.interrupt(token)
        elif kind == EventKind.ASK:
            to.ask(ino, a)
        elif kind == EventKind.WRITE_INLINE:
            to.write_inline(ino, a, b, event.payload)
        elif kind == EventKind.CHANGES_WAIT:
            to.changes_wait()
        else:
            self._dispatch_rare(event)

    def _dispatch_rare(self, event: EventRow) -> None:
        kind, a, b = event.kind, event.a, event.b
        to = self._handlers
        if kind == EventKind.CUT:
            to.cut(event.token, event.ino, a, b, event.payload)
        elif kind == EventKind.CONNECT:
            to.connect(a, b)
        elif kind == EventKind.LOG:
            self._log.at(a, event.payload.decode("utf-8", "replace"), ino=event.ino or None)
        elif kind == EventKind.REOPEN:
            to.reopen(event.ino, bool(a))
        elif kind == EventKind.DROP_REPLICAS:
            to.drop_replicas(event.ino, event.payload)
        elif kind == EventKind.SYNCED:
            to.synced(event.ino)
        elif kind == EventKind.UNMOUNTED:
            to.unmounted()
        else:
            self._log.error("an event of an unknown kind", kind=kind)
