"""BACKUP_*: a snapshot in parts, from a running metaserver; who holds one, and for how long."""

from pathlib import Path

import pytest

from fscommon.archive import Record, unpack_records
from fscommon.errors import FsError, Status
from fscommon.wire.backup import BackupBegin, BackupEnd, BackupNext, BackupPart
from fscommon.wire.messages import Create, SetXattr
from fscommon.wire.ops import Op
from metaserver import records
from metaserver.backups import SILENCE_S
from metaserver.ops.backup import PART_LENGTH
from metaserver.store.lmdb import LmdbStore

from .bench import ROOT, USER, Bench, Client


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


@pytest.fixture
def admin(bench: Bench) -> Client:
    return administrator(bench)


def administrator(bench: Bench) -> Client:
    return Client(bench, bench.connect("admin"))


def begin(admin: Client) -> int:
    return int(admin.call(Op.BACKUP_BEGIN, BackupBegin(whole=False)).id)


def part(admin: Client, number: int, after: bytes = b"") -> BackupPart:
    found: BackupPart = admin.call(Op.BACKUP_NEXT, BackupNext(number, after))
    return found


def parts(admin: Client, number: int) -> tuple[list[Record], list[BackupPart]]:
    """Everything from the beginning to the end."""
    found: list[Record] = []
    seen: list[BackupPart] = []
    while not seen or not seen[-1].end:
        after = found[-1][0] if found else b""
        seen.append(part(admin, number, after))
        taken = list(unpack_records(seen[-1].records, after))
        assert len(taken) == seen[-1].count
        found += taken
    return found, seen


def stored(bench: Bench) -> list[Record]:
    snapshot = bench.store.snapshot()
    found = list(snapshot.range(b"\0", records.KEYS_END))
    snapshot.close()
    return [record for record in found if record[0][:1] != b"R"]


def test_it_has_every_record_but_stored_replies(
    bench: Bench, client: Client, admin: Client
) -> None:
    client.create(ROOT, b"f")
    found, _ = parts(admin, begin(admin))
    assert found == stored(bench)
    assert records.dentry_key(ROOT, b"f") in dict(found)
    assert any(key[:1] == b"S" for key, _ in found), "the sessions, which the restore ends"


def test_what_was_answered_before_is_in_it(bench: Bench, client: Client, admin: Client) -> None:
    client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER))
    assert bench.engine.dirty, "it was answered before it was durable"
    admin.send(Op.BACKUP_BEGIN, BackupBegin(whole=False))
    assert not admin.received(), "it waits for the commit"
    bench.commit()
    number = admin.take().id
    assert records.dentry_key(ROOT, b"f") in dict(parts(admin, number)[0])


def test_all_parts_are_of_one_moment(bench: Bench, client: Client, admin: Client) -> None:
    for name in range(200):
        ino = client.create(ROOT, b"f%03d" % name).ino
        client.call(Op.SETXATTR, SetXattr(ino, b"user.x", bytes(9000), 0))
    bench.settle()
    number = begin(admin)
    first = part(admin, number)
    before = stored(bench)
    client.create(ROOT, b"later")
    bench.settle()
    found, seen = parts(admin, number)
    assert found == before and seen[0] == first
    assert len({(one.cluster, one.schema, one.txn, one.inodes) for one in seen}) == 1
    assert len(seen) > 5 and all(len(one.records) < PART_LENGTH + 20_000 for one in seen)
    assert first.inodes == 201 and first.txn < bench.engine.progress.txn
    admin.call(Op.BACKUP_END, BackupEnd(number))
    assert records.dentry_key(ROOT, b"later") in dict(parts(admin, begin(admin))[0])


def test_a_repeated_request_gets_the_same(admin: Client, client: Client) -> None:
    client.create(ROOT, b"f")
    number = begin(admin)
    first = part(admin, number)
    assert part(admin, number) == first


def test_only_administrators_may(client: Client) -> None:
    for op, request in (
        (Op.BACKUP_BEGIN, BackupBegin(whole=False)),
        (Op.BACKUP_NEXT, BackupNext(1, b"")),
        (Op.BACKUP_END, BackupEnd(1)),
    ):
        with pytest.raises(FsError) as caught:
            client.call(op, request)
        assert caught.value.status is Status.EPERM


def test_there_are_two_at_a_time(bench: Bench, admin: Client) -> None:
    number = begin(admin)
    begin(admin)
    with pytest.raises(FsError, match="2 backups are running") as caught:
        begin(administrator(bench))
    assert caught.value.status is Status.EBUSY
    admin.call(Op.BACKUP_END, BackupEnd(number))
    begin(administrator(bench))


def test_it_belongs_to_its_connection(bench: Bench, admin: Client) -> None:
    number, stranger = begin(admin), administrator(bench)
    with pytest.raises(FsError, match="given up this backup"):
        part(stranger, number)
    stranger.call(Op.BACKUP_END, BackupEnd(number))
    assert part(admin, number).end


def test_it_ends_with_its_connection(bench: Bench, admin: Client) -> None:
    number = begin(admin)
    backups = bench.engine.services.backups
    backups.closed(bench.connect("admin"))
    assert len(backups) == 1
    backups.closed(admin.connection)
    assert len(backups) == 0
    with pytest.raises(FsError, match="given up this backup") as caught:
        part(admin, number)
    assert caught.value.status is Status.ENOENT


def test_a_silent_reader_loses_it(bench: Bench, admin: Client) -> None:
    number, backups = begin(admin), bench.engine.services.backups
    bench.now_s += SILENCE_S - 1
    part(admin, number)
    bench.now_s += SILENCE_S - 1
    assert backups.expire(bench.now_s, is_full=False) == 0
    bench.now_s += 2
    assert backups.expire(bench.now_s, is_full=False) == 1
    with pytest.raises(FsError, match="given up this backup"):
        part(admin, number)


def test_a_full_store_needs_its_pages(bench: Bench, admin: Client) -> None:
    begin(admin)
    assert bench.engine.services.backups.expire(bench.now_s, is_full=True) == 1


def test_none_begins_during_a_recovery(bench: Bench, client: Client) -> None:
    bench.settle()
    after = Bench(bench.store, targets=0)
    assert after.engine.progress.recovering
    with pytest.raises(FsError) as caught:
        begin(administrator(after))
    assert caught.value.status is Status.NOT_READY


def test_a_store_of_pages_gives_the_same_and_lets_go(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", size_max=0)
    try:
        bench = Bench(store)
        client, admin = bench.client(), administrator(bench)
        for name in range(50):
            client.create(ROOT, b"f%03d" % name)
        bench.settle()
        for _ in range(20):  # more than LMDB has readers
            number = begin(admin)
            found, _ = parts(admin, number)
            assert found == stored(bench)
            admin.call(Op.BACKUP_END, BackupEnd(number))
        begin(admin)
        bench.engine.services.backups.closed(admin.connection)
    finally:
        store.close()


def test_a_damaged_record_is_in_no_backup(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", size_max=0)
    try:
        bench = Bench(store)
        client, admin = bench.client(), administrator(bench)
        client.create(ROOT, b"f")
        bench.settle()
        key = records.dentry_key(ROOT, b"f")
        with store._environment.begin(write=True) as transaction:
            sealed = transaction.get(key)
            assert sealed is not None
            transaction.put(key, sealed[:-1] + bytes([sealed[-1] ^ 1]))
        with pytest.raises(FsError, match="is damaged") as caught:
            parts(admin, begin(admin))
        assert caught.value.status is Status.EIO
    finally:
        store.close()


def test_bodies_from_outside_are_bounded(admin: Client) -> None:
    with pytest.raises(FsError) as caught:
        part(admin, begin(admin), b"k" * 512)
    assert caught.value.status is Status.BAD_REQUEST
    assert part(admin, begin(admin), b"\xff" * 511).count == 0
