"""A metaserver with records and storage servers with objects, as `braidfs fsck` asks them."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

from fsclient.check.looks import Looks, Wanted
from fsclient.check.mending import Drops, delete_orphans
from fsclient.check.tables import Fault, ObjectId, Tables
from fscommon.auth.handshake import HelloFields
from fscommon.checksum import block_sums
from fscommon.errors import FsError, Status, TransportError
from fscommon.layout.layout import Layout
from fscommon.wire.backup import BackupBegun, BackupEnded
from fscommon.wire.fsck import (
    EntryRow,
    FileRow,
    FsckDrop,
    FsckDropped,
    FsckNamesPart,
    FsckSlotsPart,
    Named,
    NameRow,
    Row,
    pack_row,
)
from fscommon.wire.messages import ClusterMap, TargetEntry
from fscommon.wire.objects import END_UNKNOWN, ObjectList, ObjectListing, ObjectRow, directory_of
from fscommon.wire.ops import Op

DAY_S: Final = 86_400
MIB: Final = 1 << 20
NOW_NS: Final = 10 * DAY_S * 10**9
TARGETS: Final = (1, 2, 3)


@dataclass
class Held:
    """An object on a target. is_cut: its records cannot be read; is_damaged: some bytes."""

    length: int
    age_s: int = 2 * DAY_S
    end: int = END_UNKNOWN
    is_cut: bool = False
    is_damaged: bool = False
    status: Status = Status.OK


@dataclass
class World:
    files: dict[int, FileRow] = field(default_factory=dict)
    inline: set[int] = field(default_factory=set)
    rows: list[tuple[Named, Row]] = field(default_factory=list)
    entries: list[EntryRow] = field(default_factory=list)
    objects: dict[ObjectId, Held] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)
    former_end: int = 0
    deaf: set[int] = field(default_factory=set)  # targets that do not answer
    stubborn: set[ObjectId] = field(default_factory=set)  # objects that cannot be deleted
    keeps: bool = False  # the metaserver drops no replica
    is_recovering: bool = False
    again: Callable[[], object] = lambda: None  # called before names are read the second time
    begun: int = 0
    dropped: list[FsckDrop] = field(default_factory=list)
    listed: list[tuple[int, int]] = field(default_factory=list)
    page: int = 3  # rows in a part
    timeout_s: float = 1.0

    # ---- what is there -------------------------------------------------------------------

    def add(
        self,
        ino: int,
        *stripes: tuple[int, ...],
        size: int = 5000,
        durable: int = 0,
        held: bool = True,
        age_s: int = 2 * DAY_S,
        **fields: Any,
    ) -> Layout:
        """Makes a file with these targets of each stripe, and its objects."""
        places = max(map(len, stripes))
        flat = tuple(target for one in stripes for target in (*one, 0, 0)[:places])
        layout = Layout(ino, MIB, len(stripes), flat, places, durable_stripes=durable, **fields)
        time_ns = NOW_NS - age_s * 10**9
        self.files[ino] = FileRow(ino, size, time_ns, time_ns, layout.pack())
        self.entries.append(EntryRow(1, ino, 8, b"f%d" % ino))
        for one in layout.replicas() if held else ():
            self.objects[ObjectId(one.target, ino, one.object_number)] = Held(size)
        return layout

    def change(self, ino: int, **fields: Any) -> None:
        self.files[ino] = self.files[ino]._replace(**fields)

    def relayout(self, ino: int, layout: Layout, **fields: Any) -> None:
        self.change(ino, layout=replace(layout, **fields).pack())

    # ---- Servers -------------------------------------------------------------------------

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(_Metaserver(self))

    @asynccontextmanager
    async def open_caller(self, address: str, hello: HelloFields) -> AsyncIterator[Any]:
        if int(address) in self.deaf:
            raise TransportError("nothing listens there")
        yield _Storage(self, hello.purpose)

    # ---- a check -------------------------------------------------------------------------

    async def check(
        self, tables: Tables, *, older_s: float = DAY_S, only_orphans: bool = False
    ) -> Looks:
        looks = Looks(self, tables, Wanted(older_s, only_orphans), lambda *_: None)
        await looks.check()
        return looks

    async def repair(
        self, tables: Tables, *, older_s: float = DAY_S, before: Callable[[], object] = lambda: None
    ) -> None:
        """before: called between looking and mending."""
        looks = await self.check(tables, older_s=older_s)
        assert looks.map is not None
        before()
        await delete_orphans(self, tables, looks.map, lambda *_: None)
        drops = Drops(self, tables, looks.map, NOW_NS, older_s)
        await drops.drop_all(lambda *_: None)


def found(tables: Tables) -> dict[Fault, list[ObjectId]]:
    seen = {fault: [one.name for one in tables.found(fault, NOW_NS)] for fault in Fault}
    return {fault: names for fault, names in seen.items() if names}


@dataclass
class _Metaserver:
    world: World

    async def call(self, op: Op, message: Any, timeout_s: float) -> Any:
        world = self.world
        match op:
            case Op.STATUS:
                entries = tuple(
                    TargetEntry(target, target, str(target), "up", 1 << 40, 1 << 39)
                    for target in TARGETS
                )
                return SimpleNamespace(
                    recovering=world.is_recovering, map=ClusterMap(7, b"c" * 16, entries)
                )
            case Op.BACKUP_BEGIN:
                world.begun += 1
                if world.begun == 2:
                    world.again()
                return BackupBegun(world.begun, 100)
            case Op.BACKUP_END:
                return BackupEnded()
            case Op.FSCK_NAMES:
                return self._names(message.after, entries=message.entries)
            case Op.FSCK_SLOTS:
                assert world.begun == 1, "slots come before the names"
                slots = sorted(world.slots)
                return FsckSlotsPart(tuple(slots), 0, world.former_end)
            case Op.FSCK_DROP:
                world.dropped.append(message)
                return FsckDropped(0 if world.keeps else len(message.objects))
        raise AssertionError(op)

    def _names(self, after: bytes, *, entries: bool) -> FsckNamesPart:
        world = self.world
        rows: list[tuple[Named, Row]] = [*world.rows]
        if entries:
            rows += [(Named.ENTRY, entry) for entry in world.entries]
        rows += [
            (Named.INLINE_FILE if ino in world.inline else Named.FILE, row)
            for ino, row in sorted(world.files.items())
        ]
        start = int(after or b"0")
        end = start + world.page
        packed = b"".join(pack_row(*row) for row in rows[start:end])
        more = b"%09d" % end if end < len(rows) else b""
        return FsckNamesPart(packed, more, world.page, len(rows))


def _frame(status: int = 0, body: bytes = b"", payload: bytes = b"") -> Any:
    header = SimpleNamespace(status=status, offset=1, epoch=0)
    return SimpleNamespace(header=header, body=body, payload=payload)


@dataclass
class _Storage:
    world: World
    purpose: str

    async def call(self, op: Op, message: ObjectList, timeout_s: float) -> ObjectListing:
        assert op is Op.OBJECT_LIST and self.purpose == "admin"
        self.world.listed.append((message.target, message.directory))
        names = sorted(
            (name for name in self.world.objects if name.target == message.target),
            key=lambda name: f"{name.file_id:016x}.{name.number:x}",
        )
        rows: list[ObjectRow] = []
        after = ""
        for name in names:
            text = f"{name.file_id:016x}.{name.number:x}"
            if directory_of(name.file_id) != message.directory or text <= message.after:
                continue
            if len(rows) == self.world.page:
                after = f"{rows[-1].file_id:016x}.{rows[-1].stripe_index:x}"
                break
            held = self.world.objects[name]
            rows.append(ObjectRow(name.file_id, name.number, 8192, held.age_s, held.end))
        return ObjectListing(tuple(rows), after)

    def take_payloads(self, length_max: int) -> None:
        return None

    async def answers_of(
        self, op: Op, frames: Sequence[Mapping[str, int]], *, timeout_s: float
    ) -> list[Any]:
        assert op is Op.STAT and self.purpose == "server"
        return [self._stat(ObjectId(*frame.values())) for frame in frames]

    def _stat(self, name: ObjectId) -> Any:
        held = self.world.objects.get(name)
        if held is None or held.status is not Status.OK:
            return _frame(Status.NO_OBJECT if held is None else held.status)
        return _frame(body=struct.pack("<QQII", held.length, held.length, 0, 0))

    async def exchange(self, op: Op, *, timeout_s: float, **fields: Any) -> Any:
        assert self.purpose == "server"
        if op is Op.DELETE_ALL:
            return self._delete(fields["target"], fields["body"])
        held = self.world.objects[
            ObjectId(fields["target"], fields["file_id"], fields["stripe_index"])
        ]
        if op is Op.SEEK:
            at = (1 << 64) - 1 if not held.is_cut else fields["offset"]
            return _frame(body=struct.pack("<QQ", at, 1))
        assert op is Op.READ
        if held.is_damaged or held.is_cut:
            raise FsError(Status.CORRUPT)
        payload = bytes(min(fields["length"], held.length - fields["offset"]))
        sums = block_sums(fields["offset"], payload)
        return _frame(body=struct.pack(f"<{len(sums)}Q", *sums), payload=payload)

    def _delete(self, target: int, body: bytes) -> Any:
        statuses = []
        for file_id, number in struct.iter_unpack("<QI4x", body):
            name = ObjectId(target, file_id, number)
            is_stubborn = name in self.world.stubborn
            if not is_stubborn:
                self.world.objects.pop(name, None)
            statuses.append(Status.EIO if is_stubborn else Status.OK)
        return _frame(body=struct.pack(f"<{len(statuses)}H", *statuses))


def name_row(name: ObjectId) -> NameRow:
    return NameRow(name.target, name.number, name.file_id)
