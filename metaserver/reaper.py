"""The reaper removes orphans that nobody holds open, and the objects of removed files.

It works in two steps. Each is repeated until it is done, so a crash between them loses nothing.
First, an orphan becomes a `Z` record in one transaction. Then, when this record is durable, the
targets delete its objects, those of replicas that were dropped among them, and the record goes when
all of them have answered. An `L` record is about one object, which no layout names. Records for
targets that cannot be reached wait for the next round. The reaper is idle during a recovery,
because clients have not reported yet what they hold open.
"""

from contextlib import suppress
from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.observe.log import Log, RateLimit
from fscommon.types import Ino
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.forms import Once
from metaserver.namespace.inode import Inode, find
from metaserver.namespace.links import remove_inode
from metaserver.namespace.replicas import names_of
from metaserver.records import (
    ObjectName,
    all_of,
    dropped_key,
    dropped_name_of_file,
    dropped_of_file,
    dropped_of_file_key,
    inode_key,
    lone_at,
    lone_key,
    lone_name,
    number_of,
    orphan_key,
)
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction

ROUND_MAX: Final = 2048  # records in one round
# Nobody waits for the freed space. So, while files are being removed, the reaper waits for more of
# them, to make few large rounds: it looks again after GATHER_S, at most GATHERS_MAX times.
GATHER_S: Final = 0.25
GATHERS_MAX: Final = 8
RETRY_S: Final = 2.0
_DROPPED_MAX: Final = 1 << 20  # names of one file
LOOK_S: Final = 1.0


class Reaper:
    def __init__(self, background: Background) -> None:
        self._engine = background.engine
        self._now = background.clock
        self._committer = background.committer
        self._storage = background.storage
        self._metrics = background.metrics
        self._log = Log("reaper")
        self._faults = Faults(self._log)
        self._failures = RateLimit(10.0)
        self._told = Once(lambda why: self._log.error("a record is wrong", error=why))
        self._is_behind = False  # the last round was full

    async def run(self) -> None:
        while True:
            await self._wait_for_work()
            if not self._is_behind:
                await self._gather()
            is_done = False
            with self._faults.contained("the reaper"):
                self._reap_orphans()
                txn = self._engine.progress.txn
                await self._committer.wait_durable(txn)
                is_done = await self._delete_objects()
            if not is_done:
                await trio.sleep(RETRY_S)
                self._engine.doomed = True

    async def _wait_for_work(self) -> None:
        engine = self._engine
        while engine.progress.recovering or not (engine.doomed or self._reapable()):
            with trio.move_on_after(LOOK_S):  # the last close of an orphan causes no commit
                await self._committer.committed.wait()

    async def _gather(self) -> None:
        """Waits while files are being removed: a client that removes a tree needs the CPUs more."""
        for _ in range(GATHERS_MAX):
            self._engine.doomed = False
            await trio.sleep(GATHER_S)
            if not self._engine.doomed:
                break
        self._engine.doomed = True

    def _reapable(self) -> list[Ino]:
        services = self._engine.services
        now_s = self._now().now_s
        return [
            ino
            for ino in services.sessions.reapable
            if ino not in services.intents
            and not services.leases.is_recalled(ino)
            and not services.sessions.lingers(ino, now_s)
        ]

    def _reap_orphans(self) -> None:
        for ino in self._reapable()[:ROUND_MAX]:
            self._engine.services.sessions.reaped(ino)
            try:
                self._engine.system(lambda tx, context, ino=ino: _remove(tx, context, ino))  # type: ignore[misc]
            except FsError as error:
                self._told(f"inode {ino} is not removed: {error.message}")
                continue
            self._metrics.counter("braidfs_reaped_total", kind="orphan").inc()

    async def _delete_objects(self) -> bool:
        """Runs a round of deletions. Returns False if a target could not be reached."""
        self._engine.doomed = False
        found = self._engine.stored(all_of(b"Z"), ROUND_MAX)
        doomed = [row for row in found if not self._is_there(row[0])]
        self._metrics.gauge("braidfs_reaper_queue").set(len(doomed))
        self._is_behind = len(found) == ROUND_MAX and bool(doomed)
        self._engine.doomed |= self._is_behind
        layouts = [unpack_layout(raw) for _, raw in doomed]
        dropped = [self._dropped(layout) for layout in layouts]
        answers = await self._storage.delete_all(layouts, dropped)
        done: list[bytes] = []
        for (key, _), names, why in zip(doomed, dropped, answers, strict=True):
            if not why:
                done += [key, *(one for name in names for one in _dropped_keys(name))]
        failures = [why for why in answers if why]
        failures += await self._delete_lone(done)
        if failures and self._failures.permit() is not None:
            self._log.warning("objects are deleted later", error=failures[0], files=len(failures))
        if done:
            txn = self._engine.system(lambda tx, context: _delete_all(tx, done))
            count = len(answers) - sum(map(bool, answers))
            self._metrics.counter("braidfs_reaped_total", kind="file").inc(count)
            await self._committer.wait_durable(txn)
        return not failures

    def _is_there(self, key: bytes) -> bool:
        """Whether the file of which a record says that it is gone is there: the record is wrong."""
        file_id = number_of(key)
        layout = self._layout(file_id)
        if layout is None:
            return False
        self._told(f"objects of file {file_id} are not deleted, as it is there: {key!r}")
        return True

    def _layout(self, file_id: int) -> Layout | None:
        """The layout of the file with this id, if it has the number of its inode; one without
        targets if it cannot be read. None: there is no such file."""
        with suppress(RecordError):
            raw = self._engine.stored_record(inode_key(file_id))
            inode = Inode.parse(raw) if raw is not None else None
            layout = inode.layout() if inode is not None and inode.is_file else None
            return layout if layout is not None and layout.file_id == file_id else None
        return Layout(file_id, 0, 0, ())

    def _dropped(self, layout: Layout) -> list[ObjectName]:
        """The names of the file's objects that its layout names no longer."""
        if not layout.is_replicated:
            return []
        found = self._engine.stored_keys(dropped_of_file(layout.file_id), _DROPPED_MAX)
        return [dropped_name_of_file(key) for key in found]

    async def _delete_lone(self, done: list[bytes]) -> list[str]:
        """Deletes objects that no layout names, at targets that are up; adds the records of those
        that are deleted to `done`. Returns why some are not deleted."""
        membership = self._engine.services.membership
        names: list[ObjectName] = []
        failures: list[str] = []
        for target in membership.targets():
            found = self._engine.stored_keys(lone_at(target.id), ROUND_MAX)
            if found and membership.is_down(target.node):
                failures.append(f"target {target.id} is down")
                continue
            names += [name for name in map(lone_name, found) if not self._is_named(name)]
            self._engine.doomed |= len(found) == ROUND_MAX
        answers = await self._storage.delete_objects([[name] for name in names])
        done += [lone_key(name) for name, why in zip(names, answers, strict=True) if not why]
        return failures + [why for why in answers if why]

    def _is_named(self, name: ObjectName) -> bool:
        """Whether the layout of its file names the object that is to be deleted: that is wrong."""
        layout = self._layout(name.file_id)
        if layout is None or (layout.targets and name not in names_of(layout)):
            return False
        self._told(f"an object is not deleted, as its file names it: {name}")
        return True


def _dropped_keys(name: ObjectName) -> tuple[bytes, bytes]:
    return dropped_key(name), dropped_of_file_key(name)


def _remove(tx: Transaction, context: Context, ino: Ino) -> None:
    tx.delete(orphan_key(ino))
    inode = find(tx, ino)
    if inode is None:
        return
    if inode.attributes.nlink:
        raise FsError(Status.EIO, f"it has a name, which the record {orphan_key(ino)!r} denies")
    remove_inode(tx, inode, context)


def _delete_all(tx: Transaction, keys: list[bytes]) -> None:
    for key in keys:
        tx.delete(key)
