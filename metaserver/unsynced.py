"""Makes durable what sessions that have ended have closed, and ends the `U` records of these files.

A client syncs in the background what it has closed, and says so. When its session has ended nobody
else does. A record ends when all replicas of the layout are durable, each in the incarnation that
this metaserver knows, and neither the layout nor the record has changed meanwhile.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.layout import Layout
from fscommon.observe.log import Log, RateLimit
from fscommon.types import Ino, SessionId, TargetId
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import names_of
from metaserver.records import ObjectName, all_of, fence_key, unsynced_place
from metaserver.storage import STORAGE_ERRORS
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction

LOOK_S: Final = 2.0
ROUND_MAX: Final = 1024
BATCH_MAX: Final = 128  # records that are looked at in one go
MANY: Final = 32  # objects of a batch, from which on their target is synced as a whole
_LOG_S: Final = 60.0

Record = tuple[bytes, bytes]  # key and value


class UnsyncedReplica(NamedTuple):
    """A replica that is to be made durable. incarnation: of its target, before it was asked."""

    ino: Ino
    name: ObjectName
    incarnation: int


class Unsynced:
    def __init__(self, background: Background, many: int = MANY) -> None:
        """many: in place of MANY."""
        self._many = many
        self._engine = background.engine
        self._storage = background.storage
        self._committer = background.committer
        self._log = Log("unsynced")
        self._faults = Faults(self._log)
        self._failures = RateLimit(_LOG_S)
        # The incarnations of targets that were synced as a whole in this round.
        self._synced_targets: dict[int, int] = {}
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
        ours = [record for record in found if self._has_ended(unsynced_place(record[0])[1])]
        self._synced_targets.clear()
        for begin in range(0, len(ours), BATCH_MAX):
            await self._sync(ours[begin : begin + BATCH_MAX])

    def _has_ended(self, session: SessionId) -> bool:
        """Whether the session has ended, and nothing that it sent is still to be refused."""
        if session in self._engine.sessions:
            return False
        try:
            return self._engine.stored_record(fence_key(session)) is None
        except RecordError:
            return False

    async def _sync(self, records: Sequence[Record]) -> None:
        """Syncs all replicas of these files, and ends the records of those that are durable."""
        replicas: list[UnsyncedReplica] = []
        not_durable: set[Ino] = set()  # files of which that cannot be said
        layouts = self._layouts({unsynced_place(key)[0] for key, _ in records}, not_durable)
        for ino, layout in layouts.items():
            found = self._replicas(ino, layout)
            if found is None:
                not_durable.add(ino)
            else:
                replicas += found
        answers = await self._answers(replicas, layouts)
        not_durable.update(
            one.ino
            for one, answer in zip(replicas, answers, strict=True)
            if not self._is_durable(one, answer)
        )

        def end(tx: Transaction, _: Context) -> None:
            for key, value in records:
                ino, _session = unsynced_place(key)
                if ino in not_durable or tx.get(key) != value:
                    continue
                if _layout_of(tx, ino) == layouts.get(ino):
                    tx.delete(key)

        self._engine.system(end)
        self._committer.changed()

    async def _answers(
        self, replicas: Sequence[UnsyncedReplica], layouts: Mapping[Ino, Layout]
    ) -> list[int | BraidError]:
        """Syncs these replicas. Returns of each the incarnation that its target says, or why it may
        not be durable."""
        await self._sync_targets(Counter(TargetId(one.name.target) for one in replicas))
        singly = [one for one in replicas if one.name.target not in self._synced_targets]
        objects = [(one.name, layouts[one.ino].truncate_epoch) for one in singly]
        answers = dict(zip(singly, await self._storage.sync_all(objects), strict=True))
        return [
            answers[one] if one in answers else self._synced_targets[one.name.target]
            for one in replicas
        ]

    async def _sync_targets(self, counts: Counter[TargetId]) -> None:
        """Syncs targets with many of these objects, each once in a round: what sessions that had
        ended by then have written is durable there. One that fails is asked for each object."""

        async def sync(target: TargetId) -> None:
            with suppress(*STORAGE_ERRORS):
                self._synced_targets[target] = await self._storage.sync_target(target)

        async with trio.open_nursery() as nursery:
            for target, count in counts.items():
                if count >= self._many and target not in self._synced_targets:
                    nursery.start_soon(sync, target)

    def _replicas(self, ino: Ino, layout: Layout) -> list[UnsyncedReplica] | None:
        """All replicas of a file; None: one of them cannot be reached."""
        membership = self._engine.services.membership
        replicas: list[UnsyncedReplica] = []
        for name in names_of(layout):
            known = membership.target(name.target)
            if known is None or membership.is_down(known.node):
                return None
            replicas.append(UnsyncedReplica(ino, name, known.incarnation))
        return replicas

    def _is_durable(self, replica: UnsyncedReplica, answer: int | BraidError) -> bool:
        """Whether all that was written to this replica before is durable."""
        if not isinstance(answer, BraidError):
            return answer == replica.incarnation
        if isinstance(answer, FsError) and answer.status is Status.NO_OBJECT:
            return True  # nothing was written to it
        if self._failures.permit() is not None:
            self._log.warning("a closed file is synced later", ino=replica.ino, error=answer)
        return False

    def _layouts(self, inos: Iterable[Ino], unread: set[Ino]) -> dict[Ino, Layout]:
        """Of those that are still there. unread: gets those that cannot be read."""
        layouts: dict[Ino, Layout] = {}

        def look(tx: Transaction, _: Context) -> None:
            for ino in inos:
                try:
                    layout = _layout_of(tx, ino)
                except RecordError:
                    unread.add(ino)
                    continue
                if layout is not None:
                    layouts[ino] = layout

        self._engine.system(look)
        return layouts


def _layout_of(tx: Transaction, ino: Ino) -> Layout | None:
    inode = find(tx, ino)
    return inode.layout() if inode is not None and inode.is_file else None
