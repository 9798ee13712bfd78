"""A store that has a record of each kind (metaserver.records), as real work leaves them behind."""

from dataclasses import replace
from functools import cache

from fscommon.layout.quota import Limits, QuotaKind
from fscommon.limits import GENERATION_SHIFT
from fscommon.types import Ino
from fscommon.wire.admin import TargetSet
from fscommon.wire.codec import encode
from fscommon.wire.keys import KeyCreate
from fscommon.wire.messages import COMMIT_SIZE, SET_SIZE, Commit, SetAttr, SetXattr, Symlink, Unlink
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaSet
from fscommon.wire.scrub import DAMAGED, LEFT
from fscommon.wire.trash import TrashSet
from metaserver import eviction, records
from metaserver.context import Context
from metaserver.namespace.acl import ACCESS
from metaserver.namespace.inode import load
from metaserver.namespace.replicas import (
    change_layout,
    doom,
    names_of,
    note_dropped,
    remove_replicas,
    without,
)
from metaserver.records import FindingRecord, ObjectName, PlanRecord, ScrubRecord
from metaserver.store.journaled import Mark
from metaserver.store.memory import MemoryStore
from metaserver.transaction import Transaction

from .bench import ROOT, USER, Client
from .mirrors import MirrorBench, closed, created

SIZE = 3 << 20
_ACL = bytes.fromhex(
    "02000000 01000600 ffffffff 02000600 e9030000 04000400 ffffffff 10000600 ffffffff"
    " 20000400 ffffffff"
)


def _grown(client: Client, ino: Ino, size: int = SIZE) -> None:
    client.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, size, 0, 0, False))


def _file(client: Client, name: bytes, *, is_synced: bool = True) -> Ino:
    ino = created(client, name)
    _grown(client, ino)
    closed(client, ino, is_synced=is_synced)
    return ino


def _replicas(tx: Transaction, degraded: Ino, planned: Ino, moved: Ino) -> None:
    """A file lacks a replica; one is being made of another; one has left a third."""
    layout = load(tx, degraded).layout()
    gone = [name for name in names_of(layout) if name.number & 255 == 0][:1]
    remove_replicas(tx, degraded, layout, gone)
    number = 1 << GENERATION_SHIFT
    for ino in (planned, moved):
        layout = load(tx, ino).layout()
        change_layout(
            tx,
            ino,
            layout.file_id,
            layout.truncate_epoch,
            lambda now: replace(now, generation_last=2),
        )
    file_id, epoch = layout.file_id, layout.truncate_epoch
    planned_id = load(tx, planned).layout().file_id
    tx.put(records.plan_key(planned), encode(PlanRecord(planned_id, epoch + 1, (4,), (number,))))
    layout = load(tx, moved).layout()
    gone = [name for name in names_of(layout) if name.number & 255 == 0][:1]
    change_layout(tx, moved, file_id, epoch, lambda now: without(now, set(gone)))
    note_dropped(tx, moved, gone)
    left, numbers = tuple(one.target for one in gone), tuple(one.number for one in gone)
    tx.put(records.plan_key(moved), encode(PlanRecord(file_id, epoch, (), (), left, numbers)))
    doom(tx, [ObjectName(3, planned_id, 2 << GENERATION_SHIFT)])


def _scrubbed(tx: Transaction, ino: Ino) -> None:
    name = names_of(load(tx, ino).layout())[0]
    tx.put(records.finding_key(ino, name), encode(FindingRecord(DAMAGED, LEFT, 2, 10**15)))
    tx.put(records.SCRUB_KEY, encode(ScrubRecord(3, 1 << 20)))
    tx.put(records.COMPARED_KEY, records.pack_number(ROOT))


def _administered(bench: MirrorBench, folder: int) -> None:
    admin = Client(bench, bench.connect("admin"))
    admin.call(Op.TRASH_SET, TrashSet(folder, True, 10))
    admin.call(Op.QUOTA_SET, QuotaSet(QuotaKind.USER, USER.uid, Limits(bytes_hard=1 << 50)))
    admin.call(Op.KEY_CREATE, KeyCreate("key", ROOT, "/", 0, 0))
    admin.call(Op.TARGET_SET, TargetSet((4,), True, moves=True))


def _dead_writer(bench: MirrorBench) -> None:
    """A client was evicted, and is not fenced everywhere."""
    client = bench.writer()
    ino = created(client, b"of the dead")
    _grown(client, ino)
    bench.settle()
    session = bench.engine.sessions.get(client.session)
    assert session is not None

    def forget(tx: Transaction, context: Context) -> None:
        eviction.forget(tx, context, session)

    bench.engine.system(forget)
    bench.engine.sessions.remove(session.id)
    bench.engine.evicted(session.id)


@cache
def whole_store() -> tuple[tuple[bytes, bytes], ...]:
    """The records of a metaserver that was killed in the middle of its work."""
    store = MemoryStore()
    bench = MirrorBench(store, nodes=4)
    _dead_writer(bench)
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)
    folder = client.mkdir(ROOT, b"folder")
    client.mkdir(folder, b"below")
    inos = [_file(client, b"file%d" % number) for number in range(6)]
    _file(client, b"not synced", is_synced=False)
    client.call(Op.SYMLINK, Symlink(ROOT, b"link", b"file0", USER))
    client.call(Op.SETXATTR, SetXattr(inos[0], b"user.a", b"value", 0))
    client.call(Op.SETXATTR, SetXattr(inos[1], ACCESS, _ACL, 0))
    client.call(Op.SETXATTR, SetXattr(folder, b"braidfs.layout", b"stripe_width=1", 0))
    _administered(bench, folder)
    ino = created(client, b"kept")
    closed(client, ino, is_synced=True)
    client.call(Op.UNLINK, Unlink(ROOT, b"kept"))
    for name in (b"in the trash", b"in the trash, too"):
        ino = created(client, name, folder)
        closed(client, ino, is_synced=True)
        client.call(Op.UNLINK, Unlink(folder, name))
    _grown(client, created(client, b"being written"))
    created(client, b"orphan")
    client.call(Op.UNLINK, Unlink(ROOT, b"orphan"))
    bench.settle()
    shrunk = SetAttr(inos[5], SET_SIZE, 0, 0, 0, 1 << 20, 0, 0, 0, 0, 0)
    client.send(Op.SETATTR, shrunk)
    bench.engine.system(lambda tx, context: _replicas(tx, *inos[2:5]))
    bench.engine.system(lambda tx, context: _scrubbed(tx, inos[1]))
    bench.settle()
    last = store.snapshot().get(records.TXN_KEY)
    assert last is not None
    store.commit([Mark(b"l" * 16, 7, b"n" * 16).record(), (records.RECOVERY_KEY, last)])
    return tuple(store.snapshot().range(b"", records.KEYS_END))
