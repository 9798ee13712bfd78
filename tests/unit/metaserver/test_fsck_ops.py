"""FSCK_*: what a running metaserver tells of the objects that are named, and what it drops."""

from collections import defaultdict
from dataclasses import replace

import pytest
from trio.testing import MockClock

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.types import Ino
from fscommon.wire.backup import BackupBegin
from fscommon.wire.births import Birth, ChangeBatch, Delegate, Delegated
from fscommon.wire.codec import encode
from fscommon.wire.fsck import (
    EntryRow,
    FileRow,
    FsckDrop,
    FsckDropped,
    FsckNames,
    FsckNamesPart,
    FsckSlots,
    FsckSlotsPart,
    Named,
    NameRow,
    Row,
    pack_row,
    unpack_rows,
)
from fscommon.wire.messages import SET_SIZE, SessionOpen, SetAttr, Unlink
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX
from metaserver.context import Context
from metaserver.namespace.replicas import doom, names_of, note_dropped
from metaserver.ops.fsck import PART_LENGTH, PART_RECORDS, SLOTS_OF_PART
from metaserver.records import Intent, ObjectName, PlanRecord, intent_key, plan_key
from metaserver.transaction import Transaction

from .bench import ROOT, Bench, Client
from .mirrors import MirrorBench, Targets, answer, closed, created, dropping

Rows = dict[Named, list[Row]]


@pytest.fixture
def bench() -> MirrorBench:
    return MirrorBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    return bench.writer()


@pytest.fixture
def admin(bench: MirrorBench) -> Client:
    return Client(bench, bench.connect("admin"))


def parts(admin: Client, *, entries: bool = False) -> list[FsckNamesPart]:
    number = admin.call(Op.BACKUP_BEGIN, BackupBegin(whole=False)).id
    found: list[FsckNamesPart] = []
    while not found or found[-1].after:
        after = found[-1].after if found else b""
        found.append(admin.call(Op.FSCK_NAMES, FsckNames(number, after, entries)))
    return found


def named(admin: Client, *, entries: bool = False) -> Rows:
    rows: Rows = defaultdict(list)
    for part in parts(admin, entries=entries):
        for kind, row in unpack_rows(part.rows):
            rows[kind].append(row)
    return rows


def change(bench: Bench, operation: object) -> None:
    bench.engine.system(operation, bench.time())  # type: ignore[arg-type]
    bench.settle()


# ---- names --------------------------------------------------------------------------------------


def test_every_kind_of_record_that_names_objects(
    bench: MirrorBench, client: Client, admin: Client
) -> None:
    ino, gone = created(client), created(client, b"gone")
    layout, doomed = bench.layout(ino), bench.layout(gone)
    client.call(Op.UNLINK, Unlink(ROOT, b"gone"))
    copy, lone, dropped = (ObjectName(3, ino, number) for number in (0x101, 0x201, 0x301))

    def note(tx: Transaction, context: Context) -> None:
        tx.put(plan_key(ino), encode(PlanRecord(ino, 1, (copy.target,), (copy.number,))))
        doom(tx, [lone])
        note_dropped(tx, ino, [dropped])
        content = replace(layout, inline=b"bytes").pack()
        tx.put(intent_key(ino), Intent(5, 1, content).pack())

    change(bench, note)
    rows = named(admin)
    files = {row.ino: row for row in rows[Named.FILE] if isinstance(row, FileRow)}
    assert unpack_layout(files[ino].layout) == layout
    names = {kind: row for kind in (Named.PLANNED, Named.LONE, Named.DROPPED) for row in rows[kind]}
    assert names == {
        Named.PLANNED: NameRow(3, 0x101, ino),
        Named.LONE: NameRow(3, 0x201, ino),
        Named.DROPPED: NameRow(3, 0x301, ino),
    }
    assert rows[Named.INTENT] == [layout.pack()]
    assert ino in rows[Named.WRITTEN]
    # The other file is removed, and still open.
    assert unpack_layout(files[gone].layout) == doomed and rows[Named.ENTRY] == []


def test_objects_of_files_that_are_gone(bench: MirrorBench, client: Client, admin: Client) -> None:
    ino = created(client)
    layout = bench.layout(ino)
    closed(client, ino, is_synced=True)
    client.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    rows = named(admin)
    assert rows[Named.DOOMED] == [layout.pack()]
    (row,) = rows[Named.FILE]
    assert isinstance(row, FileRow) and unpack_layout(row.layout).file_id != ino


def test_bytes_in_a_record_are_left_out(bench: MirrorBench, client: Client, admin: Client) -> None:
    given: Delegated = client.call(Op.DELEGATE, Delegate(ROOT, 1))
    (slot,) = given.slots
    layout = replace(unpack_layout(slot.layout), inline=b"x" * 3000)
    birth = Birth(slot.ino, ROOT, b"n", 0o644, 0, 0, 9, layout.pack(), True, 1, 3000, 9)
    client.call(Op.CHANGE_BATCH, ChangeBatch((birth,)))
    (row,) = named(admin)[Named.INLINE_FILE]
    assert isinstance(row, FileRow) and row.layout == slot.layout
    assert (row.ino, row.size, row.mtime_ns) == (slot.ino, 3000, 9)


def test_entries_if_asked_for(client: Client, admin: Client) -> None:
    directory = client.mkdir(ROOT, b"d")
    ino = client.create(directory, b"f").ino
    assert named(admin, entries=True)[Named.ENTRY] == [
        EntryRow(ROOT, directory, 4, b"d"),
        EntryRow(directory, ino, 8, b"f"),
    ]


def test_parts_are_bounded_and_of_one_moment(client: Client, admin: Client) -> None:
    count = 3 * PART_RECORDS + 10
    for number in range(count):
        client.mkdir(ROOT, b"d%d" % number)
    for number in range(20):
        client.create(ROOT, b"f%d" % number)
    found = parts(admin, entries=True)
    assert len(found) >= 5
    assert all(part.looked_at <= PART_RECORDS for part in found)
    assert all(len(part.rows) < PART_LENGTH + 8192 for part in found)
    rows = [row for part in found for row in unpack_rows(part.rows)]
    assert sum(kind is Named.FILE for kind, _ in rows) == 20
    assert sum(kind is Named.ENTRY for kind, _ in rows) == count + 20
    assert found[0].of == count + 21


def test_a_snapshot_is_of_its_connection(bench: MirrorBench, admin: Client) -> None:
    number = admin.call(Op.BACKUP_BEGIN, BackupBegin(whole=False)).id
    other = Client(bench, bench.connect("admin"))
    with pytest.raises(FsError) as caught:
        other.call(Op.FSCK_NAMES, FsckNames(number, b"", entries=False))
    assert caught.value.status is Status.ENOENT


@pytest.mark.parametrize("raw", [b"\x01\x04\x00abc", b"\x01", b"\x63\x00\x00", b"\x08\x01\x00a"])
def test_rows_that_are_none(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(unpack_rows(raw))


def test_rows_come_out_as_they_went_in() -> None:
    rows: list[tuple[Named, Row]] = [
        (Named.FILE, FileRow(1, 2, -3, 4, b"layout")),
        (Named.INTENT, b"layout"),
        (Named.LONE, NameRow(1, (1 << 32) - 1, (1 << 64) - 1)),
        (Named.WRITTEN, 7),
        (Named.ENTRY, EntryRow(1, 2, 4, b"name")),
    ]
    assert list(unpack_rows(b"".join(pack_row(*row) for row in rows))) == rows


# ---- slots --------------------------------------------------------------------------------------


def slots(admin: Client) -> tuple[set[int], int]:
    found: set[int] = set()
    after = 0
    while True:
        part: FsckSlotsPart = admin.call(Op.FSCK_SLOTS, FsckSlots(after))
        assert len(part.file_ids) <= 6 * SLOTS_OF_PART
        found.update(part.file_ids)
        if not part.after:
            return found, part.former_end
        assert part.after > after
        after = part.after


def test_slots_of_all_sessions(bench: MirrorBench, client: Client, admin: Client) -> None:
    clients = [client, bench.writer(), bench.writer()]
    wanted: set[int] = set()
    for one in clients:
        given: Delegated = one.call(Op.DELEGATE, Delegate(0, 3000))
        wanted.update(slot.ino for slot in given.slots)
    assert slots(admin) == (wanted, 0) and len(wanted) == 9000
    born = Birth(
        given.slots[0].ino, ROOT, b"n", 0o644, 0, 0, 0, given.slots[0].layout, writable=True
    )
    one.send(Op.DELEGATE, Delegate(ROOT, 0))
    one.call(Op.CHANGE_BATCH, ChangeBatch((born,)))
    assert slots(admin)[0] == wanted - {born.ino}


def test_births_that_were_told_before_are_durable(
    bench: MirrorBench, client: Client, admin: Client
) -> None:
    given: Delegated = client.call(Op.DELEGATE, Delegate(ROOT, 1))
    (slot,) = given.slots
    birth = Birth(slot.ino, ROOT, b"n", 0o644, 0, 0, 0, slot.layout, writable=True)
    client.send(Op.CHANGE_BATCH, ChangeBatch((birth,)))
    admin.send(Op.FSCK_SLOTS, FsckSlots(0))
    assert not admin.received(), "a snapshot would lack the file"
    bench.settle()
    assert admin.take().file_ids == ()


def test_slots_of_before_are_not_known(bench: MirrorBench, client: Client) -> None:
    client.call(Op.DELEGATE, Delegate(0, 5))
    again = Bench(bench.store, targets=0)
    admin = Client(again, again.connect("admin"))
    with pytest.raises(FsError) as caught:
        slots(admin)
    assert caught.value.status is Status.NOT_READY, "clients may tell of files until they are back"
    back = Client(again, again.connect(), session=client.session)
    back.call(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0))
    again.engine.progress.recovering = False
    found, former_end = slots(admin)
    assert found == set() and former_end > 5


def test_another_process_of_a_client_has_other_slots(
    bench: MirrorBench, client: Client, admin: Client
) -> None:
    given: Delegated = client.call(Op.DELEGATE, Delegate(0, 5))
    request = SessionOpen(client.session, "c", (), 0, is_another=True)
    client.call(Op.SESSION_OPEN, request)
    found, former_end = slots(admin)
    assert found == set() and former_end == max(slot.ino for slot in given.slots) + 1


# ---- drops --------------------------------------------------------------------------------------


def drop_of(ino: Ino, layout: Layout, *names: ObjectName) -> FsckDrop:
    numbers, targets = [one.number for one in names], [one.target for one in names]
    return FsckDrop(ino, layout.file_id, layout.truncate_epoch, tuple(numbers), tuple(targets))


async def test_a_lost_replica_is_dropped(
    bench: MirrorBench, client: Client, admin: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    layout = bench.layout(ino)
    lost, kept, *_ = names_of(layout)
    targets = Targets()
    async with dropping(bench, targets):
        admin.send(Op.FSCK_DROP, drop_of(ino, layout, lost))
        assert await answer(admin, 5) == FsckDropped(1)
        assert targets.told == [lost] and lost not in names_of(bench.layout(ino))
        admin.send(Op.FSCK_DROP, drop_of(ino, layout, lost))
        assert await answer(admin, 5) == FsckDropped(1), "a repeat is answered alike"
        admin.send(Op.FSCK_DROP, drop_of(ino, layout, kept))
        assert await answer(admin, 5) == FsckDropped(0), "it is the last one"
    assert bench.faults() == []


async def test_only_replicas_of_that_view_are_dropped(
    bench: MirrorBench, client: Client, admin: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    layout = bench.layout(ino)
    first, second, *_ = names_of(layout)
    bench.settle()
    async with dropping(bench, Targets()):
        for former in (
            replace(layout, truncate_epoch=1),
            replace(layout, file_id=layout.file_id + 1),
        ):
            admin.send(Op.FSCK_DROP, drop_of(ino, former, first))
            assert await answer(admin, 5) == FsckDropped(0)
        admin.send(Op.FSCK_DROP, drop_of(ino, layout, first, second))
        assert await answer(admin, 5) == FsckDropped(0), "both of a stripe: none of them"
        admin.send(Op.FSCK_DROP, drop_of(Ino(999), layout, first))
        assert await answer(admin, 5) == FsckDropped(0)
    assert bench.layout(ino) == layout


async def test_the_other_replica_must_be_up(
    bench: MirrorBench, client: Client, admin: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    layout = bench.layout(ino)
    lost, kept, *_ = names_of(layout)
    bench.lose(kept.target)
    bench.settle()
    async with dropping(bench, Targets()):
        admin.send(Op.FSCK_DROP, drop_of(ino, layout, lost))
        assert await answer(admin, 5) == FsckDropped(0)
    assert bench.layout(ino) == layout


def test_wrong_drops(bench: MirrorBench, client: Client, admin: Client) -> None:
    ino = created(client)
    for objects, targets in (((), ()), ((1,), (1, 2)), ((1,) * (DROPS_MAX + 1),) * 2):
        with pytest.raises(FsError) as caught:
            admin.call(Op.FSCK_DROP, FsckDrop(ino, ino, 0, objects, targets))
        assert caught.value.status is Status.BAD_REQUEST


def test_clients_may_not(client: Client) -> None:
    for op, message in (
        (Op.FSCK_NAMES, FsckNames(1, b"", entries=False)),
        (Op.FSCK_SLOTS, FsckSlots(0)),
        (Op.FSCK_DROP, FsckDrop(1, 1, 0, (1,), (1,))),
    ):
        with pytest.raises(FsError) as caught:
            client.call(op, message)
        assert caught.value.status is Status.EPERM
