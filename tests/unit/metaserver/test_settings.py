"""CHANGE_BATCH with attributes that a client set by itself: the same effect as SETATTR, order,
invalid requests, other holders of the inode (docs/decisions/0024-settings.md).
"""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_META, Attributes, unpack_attributes
from fscommon.wire.births import ChangeBatch, Changed, Setting
from fscommon.wire.messages import (
    SET_ATIME,
    SET_CTIME,
    SET_FLAGS,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    Entry,
    GetAttr,
    Open,
    SetAttr,
)
from fscommon.wire.ops import Op
from metaserver.ops.delegate import CHANGES_MAX

from .bench import ROOT, Bench, Client
from .test_leases import Cached
from .test_removals import TIME_NS, birth, file_of, removal, slots_of

ALL = SET_MODE | SET_UID | SET_GID | SET_ATIME | SET_MTIME | SET_CTIME


@pytest.fixture
def bench() -> Bench:
    return Bench()


def setting(ino: int, valid: int = ALL, written_ns: int = 0) -> Setting:
    return Setting(ino, valid, 0o640, 1, 2, 11, 12, TIME_NS, written_ns)


def tell(client: Client, *settings: Setting) -> Changed:
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch((), (), settings))
    return reply


def attributes(client: Client, ino: int) -> Attributes:
    entry: Entry = client.call(Op.GETATTR, GetAttr(ino))
    return unpack_attributes(entry.attributes)


def test_attributes_are_as_they_were_set(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    before = attributes(client, ino)
    assert tell(client, setting(ino)) == Changed(())
    after = attributes(client, ino)
    assert (after.mode & 0o7777, after.uid, after.gid) == (0o640, 1, 2)
    assert (after.atime_ns, after.mtime_ns, after.ctime_ns) == (11, 12, TIME_NS)
    assert after.change_version == before.change_version + 1
    assert (after.size, after.data_version) == (before.size, before.data_version)


def test_bytes_that_were_written_before_are_another_version(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    before = attributes(client, ino)
    tell(client, setting(ino, SET_MTIME | SET_CTIME, written_ns=99))
    after = attributes(client, ino)
    assert after.mtime_ns == 12 and after.data_version == before.data_version + 1


def test_a_file_is_born_before_it_is_set(bench: Bench) -> None:
    client = bench.client()
    slot, other = slots_of(client, 2)
    batch = ChangeBatch((birth(slot, b"a"), birth(other, b"b")), (), (setting(slot.ino),))
    reply: Changed = client.call(Op.CHANGE_BATCH, batch)
    assert reply.errors == reply.setting_errors == ()
    assert attributes(client, slot.ino).mode & 0o7777 == 0o640


def test_one_that_is_wrong_fails_alone(bench: Bench) -> None:
    client = bench.client()
    good = client.create(ROOT, b"good").ino
    protected = client.create(ROOT, b"protected").ino
    flags = SetAttr(protected, SET_FLAGS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10)
    client.call(Op.SETATTR, flags)
    folder = client.mkdir(ROOT, b"folder")
    reply = tell(
        client,
        setting(99),
        setting(good),
        setting(protected),
        setting(folder),
        setting(good, ALL | SET_SIZE),
    )
    assert [Status(status) for status in reply.setting_errors] == [
        Status.ESTALE,
        Status.OK,
        Status.EPERM,
        Status.BAD_REQUEST,
        Status.BAD_REQUEST,
    ]
    assert attributes(client, good).uid == 1 and attributes(client, protected).uid == 1000


def test_a_file_that_lost_its_name_is_no_more(bench: Bench) -> None:
    client = bench.client()
    ino = file_of(client, b"f")
    batch = ChangeBatch((), (removal(ino, b"f"),), (setting(ino),))
    reply: Changed = client.call(Op.CHANGE_BATCH, batch)
    assert reply.removal_errors == () and reply.setting_errors == (int(Status.ESTALE),)


def test_a_repeat_changes_nothing(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    batch = ChangeBatch((), (), (setting(ino),))
    request_id = client.send(Op.CHANGE_BATCH, batch)
    client.take_frame()
    once = attributes(client, ino)
    client.call(Op.CHANGE_BATCH, batch, request_id=request_id)
    assert attributes(client, ino) == once


def test_whoever_believes_the_attributes_is_told(bench: Bench) -> None:
    """No other client should hold them, because the client has them exclusively."""
    client, other = bench.client(), Cached.of(bench)
    ino = file_of(client, b"f")
    other.client.call(Op.OPEN, Open(ino, False))
    tell(client, setting(ino))
    bench.settle()
    (item,) = other.recalled()
    assert item.ino == ino and item.flags & LEASE_META


@pytest.mark.parametrize(
    "wrong",
    [
        replace(setting(2), mode=-1),
        replace(setting(2), uid=1 << 32),
        replace(setting(2), ino=-1),
        replace(setting(2), mtime_ns=1 << 63),
        replace(setting(2), written_ns=1 << 63),
    ],
)
def test_numbers_have_bounds(bench: Bench, wrong: Setting) -> None:
    with pytest.raises(FsError) as caught:
        tell(bench.client(), wrong)
    assert caught.value.status is Status.BAD_REQUEST


def test_a_batch_has_a_bound(bench: Bench) -> None:
    with pytest.raises(FsError) as caught:
        tell(bench.client(), *[setting(2)] * (CHANGES_MAX + 1))
    assert caught.value.status is Status.BAD_REQUEST
