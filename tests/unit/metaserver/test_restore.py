"""A store made from a backup: what comes back, which numbers go on, what is refused, and what an
interrupted restore leaves."""

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fscommon.archive import ArchiveError, ArchiveReader, ArchiveWriter, Head, Record, pack_record
from fscommon.errors import ConfigError, FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_SIZE,
    Close,
    Commit,
    Create,
    GetAttr,
    Open,
    SessionOpen,
    SetAttr,
    SetXattr,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver import records, restore
from metaserver.eviction import _forget_writes
from metaserver.fsck import check
from metaserver.restore import Jumps, restored_record
from metaserver.state_directory import RESTORING, STORE, check_restored, held
from metaserver.store.lmdb import LmdbStore
from metaserver.store.waist import Store

from .bench import ROOT, USER, Bench, Client

NOW_S = 1_800_000_000


def head_of(store: Store) -> Head:
    snapshot = store.snapshot()
    cluster = snapshot.get(records.CLUSTER_KEY) or b""
    inodes = records.unpack_number(snapshot.get(records.INODES_KEY))
    txn = records.unpack_number(snapshot.get(records.TXN_KEY))
    snapshot.close()
    return Head(cluster, records.SCHEMA_VERSION, txn, inodes, NOW_S * 10**9)


def stored(store: Store) -> list[Record]:
    snapshot = store.snapshot()
    found = list(snapshot.range(b"\0", records.KEYS_END))
    snapshot.close()
    return found


def put_backup(path: Path, head: Head, found: list[Record]) -> Path:
    with path.open("wb") as file:
        writer = ArchiveWriter(file, head)
        for record in found:
            writer.add(pack_record(*record), 1)
        writer.finish()
    return path


def backup_of(bench: Bench, path: Path) -> Path:
    bench.settle()
    return put_backup(path, head_of(bench.store), stored(bench.store))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


@pytest.fixture
def opened() -> Iterator[Callable[[Path], LmdbStore]]:
    """Opens stores, and closes them at the end."""
    stores: list[LmdbStore] = []

    def open_(directory: Path) -> LmdbStore:
        stores.append(LmdbStore(directory / STORE, size_max=0))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


Opened = Callable[[Path], LmdbStore]


def attributes_of(client: Client, ino: int) -> Attributes:
    return unpack_attributes(client.call(Op.GETATTR, GetAttr(ino)).attributes)


def layout_of(store: Store, ino: int) -> Layout:
    snapshot = store.snapshot()
    raw = snapshot.get(records.inode_key(ino))
    snapshot.close()
    assert raw is not None
    return unpack_layout(raw[128:])


def resize(ino: int, size: int) -> SetAttr:
    return SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0)


def started(store: Store) -> Bench:
    """A metaserver over a restored store, when former sessions are fenced and their files cut."""
    after = Bench(store, targets=0)
    leases = after.engine.services.leases
    for ghost in leases.ghosts():
        leases.fenced(ghost, after.now_s)
        after.engine.system(lambda tx, context, ghost=ghost: _forget_writes(tx, ghost))  # type: ignore[misc]
    after.finish_truncates()
    return after


def written(client: Client, name: bytes, size: int) -> int:
    """A file with that many bytes, as its writer has told them."""
    opened = client.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER))
    ino = unpack_attributes(opened.attributes).ino
    file_id = unpack_layout(opened.layout).file_id
    client.call(Op.COMMIT, Commit(ino, file_id, COMMIT_SIZE, size, 1, 0, False))
    return ino


def test_names_attributes_and_xattrs_come_back(
    bench: Bench, client: Client, tmp_path: Path, opened: Opened
) -> None:
    folder = client.mkdir(ROOT, b"d")
    ino = written(client, b"f", 5000)
    client.call(Op.SETXATTR, SetXattr(ino, b"user.x", b"value", 0))
    backup = backup_of(bench, tmp_path / "b")
    client.create(folder, b"later")
    done = restore.restore(backup, tmp_path / "state", NOW_S)
    store = opened(tmp_path / "state")
    assert (done.inodes, done.sessions) == (3, 1) and done.records == len(stored(store))
    after = started(store)
    assert not after.engine.progress.recovering, "there is nobody to wait for"
    again = after.client()
    assert again.lookup(ROOT, b"d").ino == folder
    assert attributes_of(again, ino).size == 5000
    with pytest.raises(FsError):
        again.lookup(folder, b"later")
    after.finish_truncates()
    assert after.faults() == []


def test_it_is_of_the_same_cluster(bench: Bench, tmp_path: Path, opened: Opened) -> None:
    restore.restore(backup_of(bench, tmp_path / "b"), tmp_path / "state", NOW_S)
    after = Bench(opened(tmp_path / "state"), targets=0)
    mine, theirs = after.engine.services, bench.engine.services
    assert mine.cluster == theirs.cluster and mine.capability_key == theirs.capability_key
    assert [t.uuid for t in mine.membership.targets()] == [
        t.uuid for t in theirs.membership.targets()
    ]
    assert mine.progress.incarnation != theirs.progress.incarnation


# ---- numbers -------------------------------------------------------------------------------------


def test_no_number_is_given_again(
    bench: Bench, client: Client, tmp_path: Path, opened: Opened
) -> None:
    """Also if the same backup is restored twice, with work in between."""
    ino = written(client, b"f", 1 << 20)
    backup = backup_of(bench, tmp_path / "b")
    newest = client.create(ROOT, b"later")
    client.call(Op.SETATTR, resize(ino, 5000))
    used = [(newest.ino, attributes_of(client, ino), layout_of(bench.store, ino))]
    used.append((0, attributes_of(client, ino), layout_of(bench.store, ino)))
    epoch, txn = bench.engine.services.membership.epoch, bench.engine.progress.txn
    for turn in range(2):
        state = tmp_path / f"state{turn}"
        restore.restore(backup, state, NOW_S + turn)
        after = started(opened(state))
        again = after.client()
        again.call(Op.OPEN, Open(ino, True))
        fresh = again.create(ROOT, b"fresh").ino
        seen, layout = attributes_of(again, ino), layout_of(after.store, ino)
        assert fresh > used[-1][0]
        assert seen.data_version > used[-1][1].data_version
        assert seen.change_version > used[-1][1].change_version
        assert layout.truncate_epoch > used[-1][2].truncate_epoch
        assert after.engine.services.membership.epoch > epoch
        assert after.engine.progress.txn > txn
        for _ in range(50):
            again.call(Op.SETATTR, resize(ino, 4000))
        after.finish_truncates()
        used.append((fresh + (1 << 19), attributes_of(again, ino), layout))
        epoch, txn = after.engine.services.membership.epoch, after.engine.progress.txn


def test_a_clock_that_is_wrong_goes_back_behind_no_number() -> None:
    jumps = Jumps(0)
    for number in (0, 5, 1 << 40, 1 << 51):
        assert jumps.far(number) >= number + (1 << 40)
    for number in (0, 5, 1 << 20, 1 << 31):
        assert jumps.near(number) >= number + (1 << 20)


def test_numbers_fit_their_records_for_long() -> None:
    jumps = Jumps(NOW_S + 50 * 366 * 86400)
    assert jumps.far(1 << 61) < 1 << 63 and jumps.near(1 << 31) < 1 << 32


def test_tiny_files_and_links_keep_their_bytes(bench: Bench, client: Client) -> None:
    jumps = Jumps(NOW_S)
    ino = client.create(ROOT, b"f").ino
    bench.settle()
    layout = layout_of(bench.store, ino)
    tiny = replace(layout, inline=b"tiny")
    attributes = attributes_of(client, ino)
    kept = restored_record(records.inode_key(ino), attributes.pack() + tiny.pack(), jumps)
    assert kept is not None and unpack_layout(kept[1][128:]).inline == b"tiny"
    link = replace(attributes, mode=0o120777).pack() + b"to/where"
    kept = restored_record(records.inode_key(ino), link, jumps)
    assert kept is not None and kept[1].endswith(b"to/where")


# ---- sessions ------------------------------------------------------------------------------------


def test_sessions_of_the_backup_have_ended(
    bench: Bench, client: Client, tmp_path: Path, opened: Opened
) -> None:
    ino = written(client, b"f", 5000)
    shut = written(client, b"shut", 10)
    client.call(Op.CLOSE, Close((shut,)))
    done = restore.restore(backup_of(bench, tmp_path / "b"), tmp_path / "state", NOW_S)
    store = opened(tmp_path / "state")
    assert done.sessions == 1 and done.cut >= 1
    found = dict(stored(store))
    assert not any(key[:1] in (b"S", b"R") for key in found)
    assert records.fence_key(client.session) in found
    after = Bench(store, targets=0)
    comes_back = Client(after, after.connect())
    with pytest.raises(FsError) as caught:
        comes_back.call(Op.SESSION_OPEN, SessionOpen(client.session, "c", (ino,), 0, (ino,)))
    assert caught.value.status is Status.UNKNOWN_SESSION
    assert after.engine.services.leases.ghosts() == [client.session], "it is fenced everywhere"
    intent = records.unpack_intent(found[records.intent_key(ino)])
    assert (intent.size, intent.epoch) == (5000, layout_of(store, ino).truncate_epoch)
    assert check(store.snapshot()) == []


def test_a_truncate_that_had_not_ended_goes_on(
    bench: Bench, client: Client, tmp_path: Path, opened: Opened
) -> None:
    ino = written(client, b"f", 1 << 20)
    client.send(Op.SETATTR, resize(ino, 5000))
    bench.settle()
    before = layout_of(bench.store, ino).truncate_epoch
    done = restore.restore(backup_of(bench, tmp_path / "b"), tmp_path / "state", NOW_S)
    store = opened(tmp_path / "state")
    assert done.cut == 0, "it is cut already"
    intent = records.unpack_intent(dict(stored(store))[records.intent_key(ino)])
    assert intent.size == 5000 and intent.epoch > before
    assert intent.epoch == layout_of(store, ino).truncate_epoch
    assert check(store.snapshot()) == []


def test_what_is_to_be_removed_stays_so_and_nothing_else_is(
    bench: Bench, client: Client, tmp_path: Path, opened: Opened
) -> None:
    gone = written(client, b"gone", 10)
    client.call(Op.UNLINK, Unlink(ROOT, b"gone"))  # still open, so it is an orphan
    backup = backup_of(bench, tmp_path / "b")
    written(client, b"later", 10)
    restore.restore(backup, tmp_path / "state", NOW_S)
    after = Bench(opened(tmp_path / "state"), targets=0)
    assert after.engine.services.sessions.reapable == {gone}
    assert after.engine.stored(records.all_of(b"Z"), 10) == [], "no other object is deleted"


# ---- what is refused -----------------------------------------------------------------------------


def nothing_is_left(state: Path) -> bool:
    return not state.exists() or {path.name for path in state.iterdir()} <= {"lock"}


def test_a_directory_with_a_store_is_refused(bench: Bench, tmp_path: Path) -> None:
    backup = backup_of(bench, tmp_path / "b")
    restore.restore(backup, tmp_path / "state", NOW_S)
    before = (tmp_path / "state" / STORE / "data.mdb").read_bytes()
    with pytest.raises(ConfigError, match="has a metadata store"):
        restore.restore(backup, tmp_path / "state", NOW_S)
    assert (tmp_path / "state" / STORE / "data.mdb").read_bytes() == before


def test_a_directory_in_use_is_refused(bench: Bench, tmp_path: Path) -> None:
    backup = backup_of(bench, tmp_path / "b")
    with held(tmp_path / "state"):
        with pytest.raises(ConfigError, match="is in use by another process"):
            restore.restore(backup, tmp_path / "state", NOW_S)
        with pytest.raises(ConfigError, match="in use"), held(tmp_path / "state"):
            raise AssertionError("it is held")
    restore.restore(backup, tmp_path / "state", NOW_S)


def test_a_damaged_backup_leaves_nothing(bench: Bench, client: Client, tmp_path: Path) -> None:
    for number in range(300):
        client.create(ROOT, os.urandom(100).hex().encode() + b"%d" % number)
    raw = backup_of(bench, tmp_path / "b").read_bytes()
    for place in (70, len(raw) // 2, len(raw) - 20):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(ArchiveError, match=f"{tmp_path}/b: .*"):
            restore.restore(tmp_path / "b", tmp_path / "state", NOW_S)
        assert nothing_is_left(tmp_path / "state")
    (tmp_path / "b").write_bytes(raw[: len(raw) - 30])
    with pytest.raises(ArchiveError, match="the file was cut off"):
        restore.restore(tmp_path / "b", tmp_path / "state", NOW_S)
    assert nothing_is_left(tmp_path / "state")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schema": 2}, "its records have schema 2; this program needs 1"),
        ({"cluster": b"x" * 16}, "its cluster is another one"),
        ({"inodes": 99}, "its inodes is another one"),
    ],
)
def test_a_head_of_other_records_is_refused(
    bench: Bench, tmp_path: Path, change: dict[str, object], what: str
) -> None:
    bench.settle()
    head = replace(head_of(bench.store), **change)  # type: ignore[arg-type]
    backup = put_backup(tmp_path / "b", head, stored(bench.store))
    with pytest.raises(ArchiveError, match=what):
        restore.restore(backup, tmp_path / "state", NOW_S)
    assert nothing_is_left(tmp_path / "state")


@pytest.mark.parametrize(
    "record",
    [
        (records.inode_key(7), b"short"),
        (records.inode_key(7), Attributes(7, mode=0o100644).pack() + b"no layout"),
        (records.intent_key(7), b""),
        (records.intent_key(7), bytes(100)),
        (b"S", b""),
        (records.INO_END_KEY, b"short"),
        (b"W" + b"x" * 3, b""),
        (records.INO_END_KEY, b"\xff" * 8),
    ],
)
def test_records_that_no_metaserver_wrote_are_refused(
    bench: Bench, tmp_path: Path, record: Record
) -> None:
    bench.settle()
    found = sorted(({**dict(stored(bench.store)), record[0]: record[1]}).items())
    backup = put_backup(tmp_path / "b", head_of(bench.store), found)
    with pytest.raises(ArchiveError, match="a record is not one of a metaserver"):
        restore.restore(backup, tmp_path / "state", NOW_S)
    assert nothing_is_left(tmp_path / "state")


def test_inodes_are_counted(bench: Bench, client: Client, tmp_path: Path) -> None:
    ino = client.create(ROOT, b"f").ino
    bench.settle()
    found = [record for record in stored(bench.store) if record[0] != records.inode_key(ino)]
    backup = put_backup(tmp_path / "b", head_of(bench.store), found)
    with pytest.raises(ArchiveError, match="it has 1 inodes, and says 2"):
        restore.restore(backup, tmp_path / "state", NOW_S)


# ---- interruptions -------------------------------------------------------------------------------


def test_no_metaserver_starts_where_a_restore_was_interrupted(bench: Bench, tmp_path: Path) -> None:
    backup, state = backup_of(bench, tmp_path / "b"), tmp_path / "state"
    (state / RESTORING).mkdir(parents=True)
    (state / RESTORING / "data.mdb").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"was interrupted: run `braidfs meta restore` again"):
        check_restored(state)
    restore.restore(backup, state, NOW_S)
    check_restored(state)
    assert not (state / RESTORING).exists()


def test_whatever_ends_it_before_the_rename_leaves_no_store(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, state = backup_of(bench, tmp_path / "b"), tmp_path / "state"

    def interrupted(store: LmdbStore, head: Head, name: str) -> tuple[int, int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restore, "_verify", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore.restore(backup, state, NOW_S)
    assert nothing_is_left(state)
    restore.restore(backup, state, NOW_S)


def test_the_store_belongs_to_the_owner_of_the_directory(bench: Bench, tmp_path: Path) -> None:
    backup, state = backup_of(bench, tmp_path / "b"), tmp_path / "state"
    state.mkdir()
    owner = 54321 if os.geteuid() == 0 else os.geteuid()
    os.chown(state, owner, -1)
    restore.restore(backup, state, NOW_S)
    paths = [state / STORE, *(state / STORE).iterdir(), state / "lock"]
    assert {path.stat().st_uid for path in paths} == {owner}
    assert (state / STORE / "data.mdb").stat().st_mode & 0o777 == 0o600


# ---- the program ---------------------------------------------------------------------------------


def test_the_program_says_what_it_did(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = str(backup_of(bench, tmp_path / "b"))
    assert restore.main([backup, str(tmp_path / "state")]) == 0
    assert json.loads(capsys.readouterr().out)["inodes"] == 1
    assert restore.main([backup, str(tmp_path / "state")]) == 2
    assert "has a metadata store" in capsys.readouterr().err
    (tmp_path / "b").write_bytes(b"foreign")
    assert restore.main([backup, str(tmp_path / "other")]) == 1
    assert "it is no backup" in capsys.readouterr().err
    assert restore.main([str(tmp_path / "nowhere"), str(tmp_path / "other")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert restore.main([backup]) == 2


def test_large_backups_are_restored_in_batches(
    bench: Bench, tmp_path: Path, opened: Opened
) -> None:
    bench.settle()
    extra = [(records.xattr_key(1, b"user.%06d" % n), bytes(100)) for n in range(50_000)]
    found = sorted([*stored(bench.store), *extra])
    backup = put_backup(tmp_path / "b", head_of(bench.store), found)
    started = time.monotonic()
    restore.restore(backup, tmp_path / "state", NOW_S)
    assert time.monotonic() - started < 60
    kept = dict(stored(opened(tmp_path / "state")))
    assert all(kept[key] == value for key, value in extra)
    reader = ArchiveReader(io.BytesIO(backup.read_bytes()), "b")
    assert sum(map(len, reader.records())) == len(found)
