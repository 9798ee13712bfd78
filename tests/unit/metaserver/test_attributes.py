"""SETATTR, COMMIT, xattrs and ACLs."""

import stat
import struct
import sys
from dataclasses import replace
from typing import Any

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.wire.births import Delegate
from fscommon.wire.messages import (
    COMMIT_KILL_SGID,
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    COMMIT_SYNCED,
    SET_ATIME,
    SET_CTIME,
    SET_GID,
    SET_KILL_SGID,
    SET_KILL_SUIDGID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    XATTR_KILL_SGID,
    Close,
    Commit,
    Create,
    GetAttr,
    GetXattr,
    Link,
    ListXattr,
    MkDir,
    Open,
    RemoveXattr,
    Rename,
    SetAttr,
    SetXattr,
    StatFs,
    Symlink,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.records import all_of
from metaserver.store.waist import StoreRoom

from .bench import ROOT, USER, Bench, Client

ACCESS, DEFAULT = b"system.posix_acl_access", b"system.posix_acl_default"


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


def fails(client: Client, op: Op, message: object) -> Status:
    with pytest.raises(FsError) as caught:
        client.call(op, message)
    return caught.value.status


def attributes(client: Client, ino: int) -> Attributes:
    return unpack_attributes(client.call(Op.GETATTR, GetAttr(ino)).attributes)


def change(ino: int, valid: int, **fields: int) -> SetAttr:
    names = [
        "mode",
        "uid",
        "gid",
        "size",
        "atime_ns",
        "mtime_ns",
        "ctime_ns",
        "written_size",
        "written_mtime_ns",
    ]
    return SetAttr(ino, valid, *(fields.get(name, 0) for name in names))


def set_attributes(client: Client, ino: int, valid: int, **fields: int) -> Attributes:
    return unpack_attributes(client.call(Op.SETATTR, change(ino, valid, **fields)).attributes)


def open_layout(client: Client, ino: int) -> Layout:
    return unpack_layout(client.call(Op.OPEN, Open(ino, True)).layout)


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF
WITH_USER = acl((1, 7, NO_ID), (2, 6, 1234), (4, 5, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID))


def test_mode_owner_and_times(client: Client) -> None:
    made = client.create(ROOT, b"f")
    now = set_attributes(client, made.ino, SET_MODE, mode=0o4751)
    assert stat.S_IMODE(now.mode) == 0o4751 and stat.S_ISREG(now.mode)
    assert now.ctime_ns > made.ctime_ns and now.mtime_ns == made.mtime_ns
    now = set_attributes(client, made.ino, SET_ATIME | SET_MTIME, atime_ns=5, mtime_ns=-7)
    assert (now.atime_ns, now.mtime_ns) == (5, -7)
    now = set_attributes(client, made.ino, SET_CTIME, ctime_ns=99)
    assert now.ctime_ns == 99
    now = set_attributes(client, made.ino, SET_UID | SET_GID, uid=5, gid=6)
    assert (now.uid, now.gid, stat.S_IMODE(now.mode)) == (5, 6, 0o751), "chown drops suid"


def test_chown_of_a_directory_keeps_its_bits(client: Client) -> None:
    ino = client.mkdir(ROOT, b"d", 0o2755)
    assert set_attributes(client, ino, SET_UID, uid=1).mode & stat.S_ISGID


def test_kill_suidgid_spares_a_group_bit_without_execution(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    set_attributes(client, ino, SET_MODE, mode=0o6745)
    mode = set_attributes(client, ino, SET_KILL_SUIDGID).mode
    assert stat.S_IMODE(mode) == 0o2745
    set_attributes(client, ino, SET_MODE, mode=0o6755)
    assert stat.S_IMODE(set_attributes(client, ino, SET_KILL_SUIDGID).mode) == 0o755


def test_kill_of_every_group_bit(client: Client) -> None:
    made = client.create(ROOT, b"f")
    every = SET_KILL_SUIDGID | SET_KILL_SGID
    set_attributes(client, made.ino, SET_MODE, mode=0o6745)
    assert stat.S_IMODE(set_attributes(client, made.ino, every).mode) == 0o745
    set_attributes(client, made.ino, SET_MODE, mode=0o6745)
    flags = COMMIT_MTIME | COMMIT_KILL_SUIDGID | COMMIT_KILL_SGID
    client.call(Op.COMMIT, Commit(made.ino, made.ino, flags, 0, 1, 0, False))
    assert stat.S_IMODE(attributes(client, made.ino).mode) == 0o745


def test_a_kill_changes_ctime_and_no_directory(client: Client) -> None:
    for ino, left in ((client.create(ROOT, b"f").ino, 0o755), (client.mkdir(ROOT, b"d"), 0o6755)):
        before = set_attributes(client, ino, SET_MODE, mode=0o6755)
        after = set_attributes(client, ino, SET_KILL_SUIDGID | SET_KILL_SGID)
        assert stat.S_IMODE(after.mode) == left
        assert after.ctime_ns > before.ctime_ns


def test_growth_is_just_a_number(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    before = open_layout(client, ino)
    grown = set_attributes(client, ino, SET_SIZE, size=10_000)
    assert grown.size == 10_000 and grown.blocks == 20 and grown.mtime_ns == grown.ctime_ns
    assert open_layout(client, ino) == before


def test_truncate_to_zero_gives_a_new_file_id(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    old = open_layout(client, ino)
    opened = client.call(Op.SETATTR, change(ino, SET_SIZE, written_size=500))
    new = unpack_layout(opened.layout)
    assert unpack_attributes(opened.attributes).size == 0
    assert new.file_id not in (old.file_id, ino) and len(opened.capability) == 64
    assert bench.faults() == []
    doomed = bench.engine.stored(all_of(b"Z"), 9)
    assert [unpack_layout(value) for _, value in doomed] == [old]


def test_an_empty_file_is_laid_out_like_the_one_that_it_becomes_a_copy_of(
    bench: Bench, client: Client
) -> None:
    model, ino = client.create(ROOT, b"model").ino, client.create(ROOT, b"f").ino
    wanted, old = open_layout(client, model), open_layout(client, ino)
    assert wanted.targets != old.targets
    reply = client.call(Op.SETATTR, replace(change(ino, SET_SIZE), like=model))
    new = unpack_layout(reply.layout)
    assert new == replace(wanted, file_id=new.file_id)
    assert new.file_id not in (old.file_id, wanted.file_id)
    for like in (ROOT, 4711):  # neither is a file, so the usual layout is used
        assert client.call(Op.SETATTR, replace(change(ino, SET_SIZE), like=like)).layout
    client.call(Op.SETXATTR, SetXattr(ROOT, LAYOUT_XATTR, b"stripe_width=1", 0))
    narrow = client.create(ROOT, b"narrow").ino
    shape = open_layout(client, narrow).stripe_width
    reply = client.call(Op.SETATTR, replace(change(narrow, SET_SIZE), like=model))
    assert unpack_layout(reply.layout).stripe_width == shape == 1, "its own shape stays"
    assert bench.faults() == []


def test_a_shrink_waits_for_the_targets_and_growth_for_the_shrink(
    bench: Bench, client: Client
) -> None:
    ino = client.create(ROOT, b"f").ino
    other = bench.client()
    set_attributes(client, ino, SET_SIZE, size=10_000)
    bench.settle()
    client.send(Op.SETATTR, change(ino, SET_SIZE, size=100))
    bench.settle()
    assert client.received() == [], "not answered before the targets have cut"
    assert bench.faults() == [] and len(bench.engine.stored(all_of(b"T"), 9)) == 1
    other.send(Op.SETATTR, change(ino, SET_SIZE, size=5000))
    other.send(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, 7000, 0, 0, False))
    other.send(Op.OPEN, Open(ino, False))
    bench.settle()
    assert other.received() == []
    assert attributes(other, ino).size == 100
    bench.finish_truncates()
    shrunk = client.take()
    assert unpack_layout(shrunk.layout).truncate_epoch == 1
    assert unpack_attributes(shrunk.attributes).size == 100
    bench.settle()
    assert [frame.header.status for frame in other.received()] == [0, 0, 0]
    other.replies.clear()
    assert attributes(other, ino).size == 7000
    assert bench.faults() == []


def test_parked_requests_of_a_closed_connection_never_run(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    other = bench.client()
    set_attributes(client, ino, SET_SIZE, size=10_000)
    client.send(Op.SETATTR, change(ino, SET_SIZE, size=100))
    other.send(Op.SETATTR, change(ino, SET_SIZE, size=5000))
    bench.engine.closed(other.connection)
    bench.finish_truncates()
    assert attributes(client, ino).size == 100


@pytest.mark.parametrize(
    ("size", "status"),
    [(-1, Status.BAD_REQUEST), (1 << 63, Status.EFBIG), ((1 << 64) - 1, Status.EFBIG)],
)
def test_sizes_out_of_range(client: Client, size: int, status: Status) -> None:
    ino = client.create(ROOT, b"f").ino
    assert fails(client, Op.SETATTR, change(ino, SET_SIZE, size=size)) is status
    assert fails(client, Op.COMMIT, Commit(ino, ino, 1, size, 0, 0, False)) is status


def test_size_of_what_has_none(client: Client) -> None:
    directory = client.mkdir(ROOT, b"d")
    assert fails(client, Op.SETATTR, change(directory, SET_SIZE, size=1)) is Status.EISDIR
    link = unpack_attributes(client.call(Op.SYMLINK, Symlink(ROOT, b"s", b"x", USER)).attributes)
    assert fails(client, Op.SETATTR, change(link.ino, SET_SIZE, size=1)) is Status.EINVAL
    assert fails(client, Op.SETATTR, change(link.ino, 1 << 20)) is Status.BAD_REQUEST


def test_commit_merges_by_maximum(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    flags = COMMIT_SIZE | COMMIT_MTIME
    first = client.call(Op.COMMIT, Commit(ino, ino, flags, 5000, 77, 0, False))
    assert unpack_attributes(first.attributes).size == 5000
    second = unpack_attributes(
        client.call(Op.COMMIT, Commit(ino, ino, flags, 100, 99, 0, False)).attributes
    )
    assert (second.size, second.mtime_ns) == (5000, 99)
    stale = client.call(Op.COMMIT, Commit(ino, ino + 1, flags, 9000, 5, 0, False))
    assert unpack_attributes(stale.attributes).size == 5000


def test_a_file_changed_when_it_was_written(bench: Bench, client: Client) -> None:
    """The writer sees this time; but it is never earlier than before, nor later than now."""
    ino = client.create(ROOT, b"f").ino
    made = client.lookup(ROOT, b"f").ctime_ns
    bench.now_ns += 10_000
    expected = {made + 2000: made + 2000, made + 1000: None, made - 1: None, 1 << 62: None}
    for mtime_ns, ctime_ns in expected.items():
        request = Commit(ino, ino, COMMIT_SIZE | COMMIT_MTIME, 5000, mtime_ns, 0, False)
        found = unpack_attributes(client.call(Op.COMMIT, request).attributes)
        assert found.mtime_ns == mtime_ns
        assert found.ctime_ns == ctime_ns or (ctime_ns is None and found.ctime_ns > made + 10_000)
        assert found.ctime_ns <= bench.now_ns


def test_commit_durable_is_answered_when_durable(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    client.send(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE | COMMIT_SYNCED, 10, 0, 0xFF, True))
    assert client.received() == []
    bench.commit()
    frame = client.take_frame()
    assert frame.header.file_id >= frame.header.offset > 0
    assert open_layout(client, ino).durable_stripes == 0b11, "only stripes that exist"


def test_writing_drops_privileges(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    set_attributes(client, ino, SET_MODE, mode=0o4755)
    client.call(Op.SETXATTR, SetXattr(ino, b"security.capability", b"x", 0))
    client.call(Op.COMMIT, Commit(ino, ino, COMMIT_MTIME | COMMIT_KILL_SUIDGID, 0, 1, 0, False))
    now = attributes(client, ino)
    assert stat.S_IMODE(now.mode) == 0o755 and now.xattr_count == 0
    assert fails(client, Op.GETXATTR, GetXattr(ino, b"security.capability")) is Status.ENODATA


def test_xattrs(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    client.call(Op.SETXATTR, SetXattr(ino, b"user.a", b"1", 1))
    client.call(Op.SETXATTR, SetXattr(ino, b"trusted.b", b"", 0))
    client.call(Op.SETXATTR, SetXattr(ino, b"user.a", b"2", 2))
    assert client.call(Op.GETXATTR, GetXattr(ino, b"user.a")).value == b"2"
    assert set(client.call(Op.LISTXATTR, ListXattr(ino)).names) == {b"user.a", b"trusted.b"}
    assert fails(client, Op.SETXATTR, SetXattr(ino, b"user.a", b"", 1)) is Status.EEXIST
    assert fails(client, Op.SETXATTR, SetXattr(ino, b"user.c", b"", 2)) is Status.ENODATA
    assert fails(client, Op.SETXATTR, SetXattr(ino, b"user.a", b"x" * 65537, 0)) is Status.E2BIG
    assert fails(client, Op.SETXATTR, SetXattr(ino, b"system.x", b"", 0)) is Status.EOPNOTSUPP
    assert fails(client, Op.SETXATTR, SetXattr(ino, b"user.", b"", 0)) is Status.EINVAL
    client.call(Op.REMOVEXATTR, RemoveXattr(ino, b"user.a"))
    assert fails(client, Op.REMOVEXATTR, RemoveXattr(ino, b"user.a")) is Status.ENODATA
    assert attributes(client, ino).xattr_count == 1
    assert bench.faults() == []


def test_the_list_of_xattrs_is_bounded(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    with pytest.raises(FsError) as caught:
        for index in range(300):
            name = b"user." + b"%03d" % index + b"n" * 247
            client.call(Op.SETXATTR, SetXattr(ino, name, b"", 0))
    assert caught.value.status is Status.ENOSPC
    names = client.call(Op.LISTXATTR, ListXattr(ino)).names
    assert sum(len(name) + 1 for name in names) <= 65536
    assert bench.faults() == []


def test_an_access_acl_sets_the_mode_and_chmod_the_acl(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f", 0o640).ino
    client.call(Op.SETXATTR, SetXattr(ino, ACCESS, WITH_USER, 0))
    assert stat.S_IMODE(attributes(client, ino).mode) == 0o770
    set_attributes(client, ino, SET_MODE, mode=0o640)
    changed = client.call(Op.GETXATTR, GetXattr(ino, ACCESS)).value
    assert changed == acl(
        (1, 6, NO_ID), (2, 6, 1234), (4, 5, NO_ID), (0x10, 4, NO_ID), (0x20, 0, NO_ID)
    )
    client.call(
        Op.SETXATTR, SetXattr(ino, ACCESS, acl((1, 6, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID)), 0)
    )
    assert fails(client, Op.GETXATTR, GetXattr(ino, ACCESS)) is Status.ENODATA
    assert stat.S_IMODE(attributes(client, ino).mode) == 0o644
    assert bench.faults() == []


def test_an_access_acl_by_one_outside_the_group_clears_set_group_id(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    set_attributes(client, ino, SET_MODE, mode=0o2755)
    client.call(Op.SETXATTR, SetXattr(ino, ACCESS, WITH_USER, 0))
    assert attributes(client, ino).mode & stat.S_ISGID
    client.call(Op.SETXATTR, SetXattr(ino, ACCESS, WITH_USER, XATTR_KILL_SGID))
    assert not attributes(client, ino).mode & stat.S_ISGID
    plain = SetXattr(ino, b"user.a", b"", XATTR_KILL_SGID)
    assert fails(client, Op.SETXATTR, plain) is Status.EINVAL


def test_default_acls_are_inherited(bench: Bench, client: Client) -> None:
    directory = client.mkdir(ROOT, b"d", 0o777)
    client.call(Op.SETXATTR, SetXattr(directory, DEFAULT, WITH_USER, 0))
    file = client.create(directory, b"f", 0o664)
    assert stat.S_IMODE(file.mode) == 0o660, "the umask does not count"
    assert client.call(Op.GETXATTR, GetXattr(file.ino, ACCESS)).value == acl(
        (1, 6, NO_ID), (2, 6, 1234), (4, 5, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)
    )
    assert fails(client, Op.GETXATTR, GetXattr(file.ino, DEFAULT)) is Status.ENODATA
    sub = client.mkdir(directory, b"s", 0o777)
    assert client.call(Op.GETXATTR, GetXattr(sub, DEFAULT)).value == WITH_USER
    minimal = acl((1, 7, NO_ID), (4, 5, NO_ID), (0x20, 0, NO_ID))
    client.call(Op.SETXATTR, SetXattr(directory, DEFAULT, minimal, 0))
    plain = client.create(directory, b"g", 0o666)
    assert stat.S_IMODE(plain.mode) == 0o640 and plain.xattr_count == 0
    assert bench.faults() == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\2\0\0",
        struct.pack("<I", 2),
        WITH_USER[:-1],
        acl((1, 7, NO_ID), (4, 5, NO_ID)),
        acl((1, 8, NO_ID), (4, 5, NO_ID), (0x20, 0, NO_ID)),
        acl((1, 7, NO_ID), (2, 7, 5), (4, 5, NO_ID), (0x20, 0, NO_ID)),
        acl((1, 7, NO_ID), (2, 7, 5), (2, 7, 5), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)),
        acl((1, 7, NO_ID), (4, 5, NO_ID), (0x20, 0, NO_ID), (0x40, 0, NO_ID)),
    ],
)
def test_broken_acls_are_refused(client: Client, raw: bytes) -> None:
    ino = client.create(ROOT, b"f").ino
    assert fails(client, Op.SETXATTR, SetXattr(ino, ACCESS, raw, 0)) is Status.EINVAL


def test_default_acls_are_for_directories(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    assert fails(client, Op.SETXATTR, SetXattr(ino, DEFAULT, WITH_USER, 0)) is Status.EACCES


def test_link_counts_have_an_end(bench: Bench, client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.modules["metaserver.ops.link"], "LINK_COUNT_MAX", 3)
    ino = client.create(ROOT, b"f").ino
    client.call(Op.LINK, Link(ino, ROOT, b"1"))
    client.call(Op.LINK, Link(ino, ROOT, b"2"))
    assert fails(client, Op.LINK, Link(ino, ROOT, b"3")) is Status.EMLINK


def test_a_full_store_takes_no_new_inodes(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    client.call(Op.SETXATTR, SetXattr(ino, b"user.old", b"", 0))
    bench.engine.progress.has_room(StoreRoom(used=100, total=100))
    assert fails(client, Op.CREATE, Create(ROOT, b"g", 0o6, True, True, USER)) is Status.ENOSPC
    assert fails(client, Op.MKDIR, MkDir(ROOT, b"g", 0o7, USER)) is Status.ENOSPC
    assert fails(client, Op.SYMLINK, Symlink(ROOT, b"g", b"to", USER)) is Status.ENOSPC
    assert fails(client, Op.LINK, Link(ino, ROOT, b"g")) is Status.ENOSPC
    assert fails(client, Op.DELEGATE, Delegate(0, 1)) is Status.ENOSPC
    for name, value in ((b"user.a", b""), (b"user.old", b"longer"), (ACCESS, WITH_USER)):
        assert fails(client, Op.SETXATTR, SetXattr(ino, name, value, 0)) is Status.ENOSPC
    client.call(Op.RENAME, Rename(ROOT, b"f", ROOT, b"h", 0))
    client.call(Op.REMOVEXATTR, RemoveXattr(ino, b"user.old"))
    client.call(Op.UNLINK, Unlink(ROOT, b"h"))
    assert client.call(Op.STATFS, StatFs()).inodes_free == 0
    assert bench.engine.progress.cells_max < 100, "little is let in before it is committed"
    bench.engine.progress.has_room(StoreRoom(used=10, total=100))
    client.create(ROOT, b"g")
    client.tell(Op.CLOSE, Close((ino,)))
