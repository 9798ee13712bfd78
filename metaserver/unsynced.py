"""Makes durable what sessions that have ended have closed, and ends the `U` records of these files.

A client syncs in the background what it has closed, and says so. When its session has ended nobody
else does. A record ends when all replicas of the layout are durable, each in the incarnation that
this metaserver knows, and neither the layout nor the record has changed meanwhile.
"""

from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout
from fscommon.observe.log import Log, RateLimit
from fscommon.types import Ino, SessionId
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import names_of
from metaserver.records import all_of, fence_key, unsynced_place
from metaserver.storage import STORAGE_ERRORS
from metaserver.transaction import Transaction

LOOK_S: Final = 2.0
ROUND_MAX: Final = 1024
_LOG_S: Final = 60.0


class Unsynced:
    def __init__(self, background: Background) -> None:
        self._engine = background.engine
        self._storage = background.storage
        self._committer = background.committer
        self._log = Log("unsynced")
        self._faults = Faults(self._log)
        self._failures = RateLimit(_LOG_S)
        self._after = b""  # the record with which the last round ended

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            with self._faults.contained("the sync of closed files"):
                await self.look()

    async def look(self) -> None:
        """Goes through some records, behind those of the last round."""
        start, end = all_of(b"U")
        found = self._engine.stored((max(start, self._after), end), ROUND_MAX)
        self._after = found[-1][0] + b"\0" if len(found) == ROUND_MAX else b""
        if self._engine.progress.recovering:
            return
        for key, value in found:
            ino, session = unsynced_place(key)
            if session in self._engine.sessions or self._is_being_fenced(session):
                continue
            if await self._is_durable(ino):
                self._engine.system(lambda tx, context, key=key, value=value: _end(tx, key, value))  # type: ignore[misc]
                self._committer.changed()

    def _is_being_fenced(self, session: SessionId) -> bool:
        key = fence_key(session)
        return bool(self._engine.stored((key, key + b"\0"), 1))

    async def _is_durable(self, ino: Ino) -> bool:
        """Syncs all replicas. Returns whether all that was written before is durable on each."""
        layout = self._layout(ino)
        if layout is None:
            return True
        membership = self._engine.services.membership
        for name in names_of(layout):
            known = membership.target(name.target)
            if known is None or membership.is_down(known.node):
                return False
            try:
                incarnation = await self._storage.sync(name, layout.truncate_epoch)
            except STORAGE_ERRORS as error:
                if isinstance(error, FsError) and error.status is Status.NO_OBJECT:
                    continue  # nothing was written to it
                if self._failures.permit() is not None:
                    self._log.warning("a closed file is synced later", ino=ino, error=error)
                return False
            if incarnation != known.incarnation:
                return False
        return self._layout(ino) == layout

    def _layout(self, ino: Ino) -> Layout | None:
        layouts: list[Layout] = []

        def look(tx: Transaction, context: Context) -> None:
            inode = find(tx, ino)
            if inode is not None and inode.is_file:
                layouts.append(inode.layout())

        self._engine.system(look)
        return layouts[0] if layouts else None


def _end(tx: Transaction, key: bytes, value: bytes) -> None:
    if tx.get(key) == value:
        tx.delete(key)
