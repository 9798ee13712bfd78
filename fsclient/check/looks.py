"""The two looks (fsclient.check.tables): asks the metaserver for names, and storage servers for
objects and their lengths.

Storage servers are asked at the same time, the targets of one after each other. A target that
cannot be read is told of, and nothing is said of its objects.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError, FsError, ProtocolError, Status
from fscommon.limits import BLOCK_SIZE
from fscommon.rpc.blocks import BlockCaller
from fscommon.rpc.caller import EXCHANGES_MAX, Caller
from fscommon.rpc.data import DataCaller, ObjectStat
from fscommon.wire.backup import BackupBegin, BackupBegun, BackupEnd
from fscommon.wire.fsck import (
    EntryRow,
    FsckNames,
    FsckNamesPart,
    FsckSlots,
    FsckSlotsPart,
    unpack_rows,
)
from fscommon.wire.messages import ClusterMap, Empty, StatusReply, TargetEntry
from fscommon.wire.objects import DIRECTORIES, ObjectList, ObjectListing, directory_of
from fscommon.wire.ops import Op

from .tables import CUT, NO_OBJECT, THERE, Length, ObjectId, Tables

SERVERS_AT_ONCE: Final = 16
# A client tells of a file that it has made within seconds. One that goes on after a restart of the
# metaserver has slots that this does not know; its files are left alone for longer.
FORMER_OLDER_S: Final = 86_400.0
_DIRECTORY: Final = 4  # DT_DIR
_PATHS_MAX: Final = 10_000  # of each kind of fault


class Servers(Protocol):
    """How servers are reached."""

    @property
    def timeout_s(self) -> float:
        """How long an answer may take."""
        ...

    def open_caller(
        self, address: str, hello: HelloFields
    ) -> AbstractAsyncContextManager[Caller]: ...

    async def run(self, work: Callable[[Caller], Awaitable[Any]]) -> Any:
        """Does the work on a connection to the active metaserver."""
        ...


Tell = Callable[[str, int, int], None]  # what is being done, how much is done, and of how much


@dataclass(slots=True)
class Wanted:
    """older_s: only orphans that nobody has changed for so long. only_orphans: nothing else is
    looked for."""

    older_s: float
    only_orphans: bool = False


@dataclass(slots=True)
class Looks:
    """Fills the tables. unread: targets that could not be read, and why."""

    servers: Servers
    tables: Tables
    wanted: Wanted
    tell: Tell
    map: ClusterMap | None = None
    unread: dict[int, str] = field(default_factory=dict)

    async def check(self) -> None:
        """Afterwards the suspects of the tables are faults. Raises BraidError."""
        self.map = await self.servers.run(self._map)
        await self._look(None)
        wanted = self.wanted
        self.tables.suspect(wanted.older_s, only_orphans=wanted.only_orphans)
        if not self.tables.has_suspects():
            return
        former_end = await self.servers.run(self._slots)
        await self._look(self._places())
        self.tables.confirm(wanted.older_s, former_end, FORMER_OLDER_S)

    def _places(self) -> dict[int, set[int]]:
        """The directories that may have suspects, and other replicas of them."""
        places: dict[int, set[int]] = defaultdict(set)
        every: set[int] = set()
        for target, file_id, is_named in self.tables.suspected():
            directory = directory_of(file_id)
            places[target].add(directory)
            if is_named:
                every.add(directory)
        for entry in self._targets():
            places[entry.target] |= every
        return places

    def _targets(self) -> tuple[TargetEntry, ...]:
        assert self.map is not None
        return self.map.targets

    async def _map(self, caller: Caller) -> ClusterMap:
        reply: StatusReply = await caller.call(Op.STATUS, Empty(), self.servers.timeout_s)
        if reply.recovering:
            raise BraidError("the metaserver recovers: clients may still tell of files; wait")
        return reply.map

    async def _look(self, places: dict[int, set[int]] | None) -> None:
        """places: the directories that are read of each target; None: all of them."""
        again = places is not None
        await self.servers.run(lambda caller: self._names(caller, again=again))
        await self._list(places)
        readable = [one.target for one in self._targets() if one.target not in self.unread]
        self.tables.listed(readable)
        if self.wanted.only_orphans:
            return
        for target in self.tables.unknown_targets(one.target for one in self._targets()):
            self.unread[target] = "the cluster has no such target"
        self.tables.note_missing(suspects=again)
        await self._at_servers(lambda entry: self._measure(entry, suspects=again), "lengths")

    # ---- the metaserver ------------------------------------------------------------------

    async def _names(self, caller: Caller, *, again: bool) -> None:
        self.tables.begin_look()
        inos = self.tables.inos(_PATHS_MAX) if again else set()
        timeout_s = self.servers.timeout_s
        begun: BackupBegun = await caller.call(Op.BACKUP_BEGIN, BackupBegin(whole=False), timeout_s)
        after, done = b"", 0
        while True:
            request = FsckNames(begun.id, after, entries=bool(inos))
            part: FsckNamesPart = await caller.call(Op.FSCK_NAMES, request, timeout_s)
            self.tables.add_names(self._without_entries(part.rows, inos))
            done += part.looked_at
            self.tell("names again" if again else "names", done, max(done, part.of))
            if part.after and part.after <= after:
                raise ProtocolError("the names of objects go round in a circle")
            after = part.after
            if not after:
                break
        await caller.call(Op.BACKUP_END, BackupEnd(begun.id), timeout_s)

    def _without_entries(self, rows: bytes, inos: set[int]) -> Iterator[Any]:
        """Keeps the entries that are needed for the paths of these inodes."""
        for kind, row in unpack_rows(rows):
            if not isinstance(row, EntryRow):
                yield kind, row
            elif row.kind == _DIRECTORY or row.ino in inos:
                self.tables.add_entry(row.ino, row.parent, row.name)

    async def _slots(self, caller: Caller) -> int:
        """Returns the end of the file ids that clients may have from before."""
        after = 0
        former_end = 0
        while True:
            part: FsckSlotsPart = await caller.call(
                Op.FSCK_SLOTS, FsckSlots(after), self.servers.timeout_s
            )
            self.tables.add_slots(part.file_ids)
            former_end = max(former_end, part.former_end)
            if part.after and part.after <= after:
                raise ProtocolError("the slots of clients go round in a circle")
            after = part.after
            if not after:
                return former_end

    # ---- storage servers -----------------------------------------------------------------

    async def _at_servers(self, work: Callable[[TargetEntry], Awaitable[None]], what: str) -> None:
        """Does the work for each target that can be read."""
        by_address: dict[str, list[TargetEntry]] = defaultdict(list)
        for entry in self._targets():
            if entry.target not in self.unread:
                by_address[entry.address].append(entry)
        total = sum(map(len, by_address.values()))
        done = 0
        limit = trio.CapacityLimiter(SERVERS_AT_ONCE)
        self.tell(what, 0, total)

        async def at_server(entries: list[TargetEntry]) -> None:
            nonlocal done
            async with limit:
                for entry in entries:
                    try:
                        await work(entry)
                    except (BraidError, OSError) as error:
                        self.unread.setdefault(entry.target, str(error))
                    done += 1
                    self.tell(what, done, total)

        async with trio.open_nursery() as nursery:
            for entries in by_address.values():
                nursery.start_soon(at_server, entries)

    async def _list(self, places: dict[int, set[int]] | None) -> None:
        what = "objects" if places is None else "objects again"
        chosen = {
            entry.target: sorted(range(DIRECTORIES) if places is None else places[entry.target])
            for entry in self._targets()
        }
        total, done = sum(map(len, chosen.values())), 0

        async def list_target(entry: TargetEntry) -> None:
            nonlocal done
            if not chosen[entry.target]:
                return
            async with self.servers.open_caller(
                entry.address, HelloFields("admin", "fsck")
            ) as caller:
                for directory in chosen[entry.target]:
                    await self._list_directory(caller, entry.target, directory)
                    done += 1
                    self.tell(what, done, total)

        await self._at_servers(list_target, what)

    async def _list_directory(self, caller: Caller, target: int, directory: int) -> None:
        after = ""
        while True:
            request = ObjectList(target, directory, after)
            part: ObjectListing = await caller.call(Op.OBJECT_LIST, request, self.servers.timeout_s)
            self.tables.add_objects(target, part.rows)
            if part.after and part.after <= after:
                raise ProtocolError("the listing of a target goes round in a circle")
            after = part.after
            if not after:
                return

    async def _measure(self, entry: TargetEntry, *, suspects: bool) -> None:
        assert self.map is not None
        objects = list_in_parts(self.tables.to_be_measured(entry.target, suspects=suspects))
        some = next(objects, [])
        if not some:
            return
        hello = HelloFields("server", "fsck", session=self.map.epoch)
        async with self.servers.open_caller(entry.address, hello) as caller:
            caller.take_payloads(BLOCK_SIZE)
            while some:
                self.tables.add_lengths(await self._lengths(caller, some))
                some = next(objects, [])

    async def _lengths(
        self, caller: Caller, some: list[tuple[ObjectId, int]]
    ) -> list[tuple[ObjectId, Length]]:
        timeout_s = self.servers.timeout_s
        names = [name for name, _ in some]
        found: list[tuple[ObjectId, Length]] = []
        stats = await DataCaller(caller).stat_all(names, timeout_s=timeout_s)
        for (name, end), seen in zip(some, stats, strict=True):
            if isinstance(seen, ObjectStat):
                length = await self._readable(caller, name, seen, end)
                found.append((name, length))
            elif seen == Status.NO_OBJECT:
                found.append((name, Length(0, NO_OBJECT)))
            elif seen == Status.CORRUPT:
                found.append((name, Length(0, CUT)))
            elif seen is None:
                raise BraidError("it did not say how long objects are")
        return found

    async def _readable(self, caller: Caller, name: ObjectId, seen: ObjectStat, end: int) -> Length:
        """end: what lies behind cannot be in the object's file; -1: it need not be looked for."""
        if 0 <= end < seen.length:
            blocks = BlockCaller(caller, *name, timeout_s=self.servers.timeout_s)
            start = -(-end // BLOCK_SIZE) * BLOCK_SIZE
            at: int | None = start
            try:
                at = await blocks.seek(start, hole=False, epoch=seen.truncate_epoch)
                if at is not None and at < seen.length:
                    await blocks.read(at, min(BLOCK_SIZE, seen.length - at))
            except FsError as error:
                if error.status in (Status.CORRUPT, Status.EIO):
                    return Length(start if at is None else at, CUT)
        return Length(seen.length, THERE)


def list_in_parts(objects: Iterator[tuple[ObjectId, int]]) -> Iterator[list[tuple[ObjectId, int]]]:
    while some := list(islice(objects, EXCHANGES_MAX)):
        yield some
