"""Footprints: one for every op, and the audit that compares them with what ops write."""

from dataclasses import replace
from typing import Any

import pytest

from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_WRITER,
)
from fscommon.types import Ino
from fscommon.wire.admin import Inspect, InspectList, Place, TreeSum
from fscommon.wire.ahead import OpenAhead
from fscommon.wire.births import Birth, ChangeBatch, Delegate
from fscommon.wire.keys import MountRoot
from fscommon.wire.leases import LeaseTake
from fscommon.wire.locks import LockCancel, LockEvents
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_MODE,
    SET_SIZE,
    Commit,
    Create,
    Empty,
    GetAttr,
    GetXattr,
    Link,
    ListXattr,
    Lookup,
    MkDir,
    MkNod,
    Open,
    ReadDir,
    ReadLink,
    RemoveXattr,
    Rename,
    RmDir,
    SetAttr,
    SetXattr,
    StatFs,
    Symlink,
    TmpFile,
    Unlink,
    WriteInline,
)
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaTell
from fscommon.wire.replicas import DropReplicas
from fscommon.wire.trash import TrashByAge, TrashItem, TrashList, TrashRestore
from metaserver import dispatch
from metaserver.leases.holders import Need
from metaserver.ops.row import Access
from metaserver.ops.table import ROWS
from metaserver.transaction import Transaction

from .bench import ROOT, USER, Bench

READER = LEASE_META | LEASE_DATA
FOOTPRINTS = {op: row.footprint for op, row in ROWS.items() if row.footprint is not None}


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- tables -----------------------------------------------------------------------------------


def test_every_op_of_a_session_has_a_footprint() -> None:
    sessions = {op for op, row in ROWS.items() if row.access is Access.SESSION}
    looking = {Op.INSPECT, Op.INSPECT_LIST, Op.TREE_SUM, Op.TRASH_LIST, Op.TRASH_BY_AGE}
    assert FOOTPRINTS.keys() == sessions | looking | {Op.QUOTA_TELL, Op.TRASH_RESTORE}
    assert {op for op, row in ROWS.items() if row.grants is not None} <= sessions


def test_footprints(bench: Bench) -> None:
    """One row for each op: what it reads and changes."""
    client = bench.client()
    d = client.mkdir(ROOT, b"d")
    f = client.create(ROOT, b"f").ino
    names, changed = LEASE_ENTRIES, 16 | LEASE_META_EXCLUSIVE
    birth = Birth(9, ROOT, b"n", 0o644, 0, 0, 0, b"", writable=True)
    meta, writing = LEASE_META_EXCLUSIVE, LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
    set_mode = SetAttr(f, SET_MODE, 0o600, 0, 0, 0, 0, 0, 0, 0, 0)
    set_size = SetAttr(f, SET_SIZE, 0, 0, 0, 5, 0, 0, 0, 0, 0)
    rows: list[tuple[Op, Any, dict[int, int]]] = [
        (Op.LOOKUP, Lookup(ROOT, b"f"), {ROOT: names}),
        (Op.GETATTR, GetAttr(f), {f: LEASE_META}),
        (Op.SETATTR, set_mode, {f: meta}),
        (Op.SETATTR, set_size, {f: writing}),
        (Op.MKNOD, MkNod(ROOT, b"n", 0o644, 0, USER), {ROOT: changed}),
        (Op.MKDIR, MkDir(ROOT, b"n", 0o755, USER), {ROOT: changed}),
        (Op.SYMLINK, Symlink(ROOT, b"n", b"t", USER), {ROOT: changed}),
        (Op.READLINK, ReadLink(f), {}),
        (Op.UNLINK, Unlink(ROOT, b"f"), {ROOT: changed, f: meta}),
        (Op.UNLINK, Unlink(ROOT, b"none"), {ROOT: names}),
        (Op.RMDIR, RmDir(ROOT, b"d"), {ROOT: changed, d: meta}),
        (Op.RENAME, Rename(ROOT, b"f", d, b"g", 0), {ROOT: changed, d: changed, f: meta}),
        (Op.RENAME, Rename(ROOT, b"f", ROOT, b"d", 0), {ROOT: changed, d: meta, f: meta}),
        (Op.LINK, Link(f, d, b"g"), {d: changed, f: meta}),
        (Op.CREATE, Create(ROOT, b"n", 0o644, True, True, USER), {ROOT: changed}),
        (Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER), {ROOT: names}),
        (Op.CREATE, Create(ROOT, b"f", 0o644, False, True, USER), {ROOT: names, f: writing}),
        (Op.OPEN, Open(f, False), {f: READER}),
        (Op.OPEN, Open(f, True), {f: writing}),
        (Op.OPEN, Open(d, True), {d: LEASE_META}),
        (Op.READDIR, ReadDir(d, 0, 10), {d: names}),
        (Op.COMMIT, Commit(f, f, COMMIT_SIZE, 5, 0, 0, False), {f: meta}),
        (Op.DROP_REPLICAS, DropReplicas(f, f, 0, (0,), (1,)), {}),
        (Op.WRITE_INLINE, WriteInline(f, f, 0, b".", 0, 0, False), {f: writing}),
        (Op.GETXATTR, GetXattr(f, b"user.a"), {f: LEASE_META}),
        (Op.SETXATTR, SetXattr(f, b"user.a", b"", 0), {f: meta}),
        (Op.LISTXATTR, ListXattr(f), {f: LEASE_META}),
        (Op.REMOVEXATTR, RemoveXattr(f, b"user.a"), {f: meta}),
        (Op.STATFS, StatFs(), {}),
        (Op.MOUNT_ROOT, MountRoot(()), {}),
        (Op.BARRIER, Empty(), {}),
        (Op.TMPFILE, TmpFile(d, 0o600, True, USER), {}),
        (Op.LOCK_EVENTS, LockEvents(()), {}),
        (Op.LOCK_CANCEL, LockCancel(1), {}),
        (Op.DELEGATE, Delegate(0, 8), {}),
        (Op.DELEGATE, Delegate(ROOT, 8), {ROOT: changed}),
        (Op.CHANGE_BATCH, ChangeBatch((birth,)), {ROOT: changed}),
        (Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10), {}),
        (Op.LEASE_TAKE, LeaseTake(f, LEASE_DATA), {f: READER}),
        (Op.LEASE_TAKE, LeaseTake(f, LEASE_DATA_EXCLUSIVE), {f: LEASE_WRITER}),
        (Op.INSPECT, Inspect(ROOT, (b"d", b"none", b"more")), {ROOT: LEASE_META, d: LEASE_META}),
        (Op.INSPECT, Inspect(f, ()), {}),
        (Op.INSPECT_LIST, InspectList(d, 0, 10), {d: LEASE_META}),
        (Op.TREE_SUM, TreeSum((Place(ROOT, 5), Place(d, 0))), {d: LEASE_META}),
        (Op.TRASH_LIST, TrashList(d, b"", 0, 0, 10), {d: LEASE_META}),
        (Op.TRASH_BY_AGE, TrashByAge(d, 0, 0, 10), {d: LEASE_META}),
        (Op.QUOTA_TELL, QuotaTell(2, 7, True, 0, (d,)), {d: LEASE_META | LEASE_ENTRIES}),
        (Op.QUOTA_TELL, QuotaTell(2, 7, False, 0, (f,)), {f: READER}),
        (Op.TRASH_RESTORE, TrashRestore(7, d, (TrashItem(b"f", f, b"g"),)), {d: changed, f: meta}),
    ]
    tx = Transaction(bench.engine._overlay, client.session)
    for op, message, expected in rows:
        found: dict[int, int] = {}
        for need in FOOTPRINTS[op](tx, message):
            found[need.ino] = found.get(need.ino, 0) | need.flags
        assert found == expected, (op, message)
    locks = {Op.LOCK_GET, Op.LOCK_SET}  # they concern no inode's attributes, names or bytes
    assert {op for op, _, _ in rows} >= set(FOOTPRINTS) - locks


def test_an_op_beside_its_footprint_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit that runs in every test of the engine would fail."""
    client = bench.client()
    client.create(ROOT, b"f")
    wrong = replace(ROWS[Op.UNLINK], footprint=lambda tx, request: [Need(Ino(ROOT), 16 | 8)])
    monkeypatch.setitem(dispatch._ROWS, int(Op.UNLINK), wrong)
    with pytest.raises(AssertionError, match="unannounced"):
        client.send(Op.UNLINK, Unlink(ROOT, b"f"))
