"""CHANGE_BATCH with names that a client removed by itself: order, invalid requests, other holders
of the inode, restart (docs/decisions/0014-removals.md).
"""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_META, LEASE_NAMER, OPEN_ELSEWHERE, unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.types import Ino, SessionId
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Delegated, Removal, Slot
from fscommon.wire.codec import encode
from fscommon.wire.messages import (
    SET_FLAGS,
    SET_SIZE,
    Close,
    Empty,
    GetAttr,
    Link,
    Lookup,
    Open,
    ReadDir,
    Replay,
    RmDir,
    SessionOpen,
    SetAttr,
    SetXattr,
)
from fscommon.wire.ops import Op
from metaserver.ops.delegate import CHANGES_MAX
from metaserver.records import all_of, inode_key

from .bench import ROOT, Bench, Client
from .test_leases import Cached

TIME_NS = 7_000_000_000_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


def slots_of(client: Client, count: int, ino: int = ROOT) -> tuple[Slot, ...]:
    reply: Delegated = client.call(Op.DELEGATE, Delegate(ino, count))
    return reply.slots


def birth(slot: Slot, name: bytes, parent: int = ROOT) -> Birth:
    return Birth(slot.ino, parent, name, 0o640, 0, 0, TIME_NS, slot.layout, writable=True)


def removal(ino: int, name: bytes, parent: int = ROOT, after: int = 0) -> Removal:
    return Removal(parent, name, ino, TIME_NS, after)


def file_of(client: Client, name: bytes, parent: int = ROOT) -> int:
    """A file that is not open."""
    ino = client.create(parent, name).ino
    client.tell(Op.CLOSE, Close((ino,)))
    return ino


def is_there(client: Client, name: bytes, parent: int = ROOT) -> bool:
    try:
        client.call(Op.LOOKUP, Lookup(parent, name))
    except FsError as error:
        assert error.status is Status.ENOENT
        return False
    return True


def remove(client: Client, *removals: Removal) -> Changed:
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch((), removals))
    return reply


def test_names_go_and_the_directory_says_when(bench: Bench) -> None:
    client = bench.client()
    inos = [file_of(client, b"%d" % number) for number in range(3)]
    before = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    reply = remove(client, *[removal(ino, b"%d" % n) for n, ino in enumerate(inos[:2])])
    assert (reply.errors, reply.removal_errors) == ((), ())
    assert unpack_attributes(reply.parents).mtime_ns == TIME_NS
    assert [is_there(client, b"%d" % number) for number in range(3)] == [False, False, True]
    after = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    assert (after.mtime_ns, after.ctime_ns, after.nlink) == (TIME_NS, TIME_NS, before.nlink)
    assert after.change_version == before.change_version + 2
    assert bench.engine.progress.inodes == 2
    assert bench.faults() == []


def test_births_and_removals_mix_in_order(bench: Bench) -> None:
    """A file is created, removed, created again under the name, and removed; another stays."""
    client = bench.client()
    one, two, three = slots_of(client, 3)
    births = (birth(one, b"n"), birth(two, b"n"), birth(three, b"stays"))
    removals = (removal(one.ino, b"n", after=1), removal(two.ino, b"n", after=2))
    reply = client.call(Op.CHANGE_BATCH, ChangeBatch(births, removals))
    assert (reply.errors, reply.removal_errors) == ((), ())
    assert not is_there(client, b"n")
    assert is_there(client, b"stays")
    client.tell(Op.CLOSE, Close((one.ino, two.ino, three.ino)))
    assert {one.ino, two.ino} <= bench.engine.sessions.reapable
    assert bench.faults() == []


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"name": b"none"}, Status.ENOENT),
        ({"name": b"other"}, Status.ESTALE),
        ({"name": b"a/b"}, Status.EINVAL),
        ({"name": b"n" * 256}, Status.ENAMETOOLONG),
        ({"parent": 1 << 40}, Status.ESTALE),
        ({"name": b"protected", "ino": 0}, Status.EPERM),
        ({"name": b"folder", "ino": 0}, Status.EISDIR),
    ],
)
def test_a_wrong_removal_fails_alone(
    bench: Bench, wrong: dict[str, object], status: Status
) -> None:
    client = bench.client()
    good, bad = file_of(client, b"good"), file_of(client, b"bad")
    inos = {b"protected": file_of(client, b"protected"), b"folder": client.mkdir(ROOT, b"folder")}
    file_of(client, b"other")
    immutable = SetAttr(inos[b"protected"], SET_FLAGS, 0, 0, 0, 0, 0, 0, 0, 0, 0, inode_flags=0x10)
    client.call(Op.SETATTR, immutable)
    asked = replace(removal(bad, b"bad"), **wrong)  # type: ignore[arg-type]
    asked = replace(asked, ino=asked.ino or inos[asked.name])
    reply = remove(client, asked, removal(good, b"good"))
    assert reply.removal_errors == (status, 0)
    assert not is_there(client, b"good")
    assert is_there(client, b"bad")
    assert bench.faults() == []


@pytest.mark.parametrize(
    "bad",
    [
        ChangeBatch((), (removal(2, b"f", after=1),)),
        ChangeBatch((), (removal(2, b"f", after=-1),)),
        ChangeBatch((), (replace(removal(2, b"f"), time_ns=1 << 63),)),
        ChangeBatch((), (replace(removal(2, b"f"), parent=-1),)),
        ChangeBatch((), (removal(2, b"f"),) * (CHANGES_MAX + 1)),
    ],
)
def test_a_batch_that_makes_no_sense_does_nothing(bench: Bench, bad: ChangeBatch) -> None:
    client = bench.client()
    assert file_of(client, b"f") == 2
    with pytest.raises(FsError) as refused:
        client.call(Op.CHANGE_BATCH, bad)
    assert refused.value.status is Status.BAD_REQUEST
    assert is_there(client, b"f")


def test_another_name_of_the_file_stays(bench: Bench) -> None:
    client = bench.client()
    ino = file_of(client, b"f")
    client.call(Op.LINK, Link(ino, ROOT, b"g"))
    remove(client, removal(ino, b"f"))
    left = client.lookup(ROOT, b"g")
    assert (left.nlink, left.ctime_ns) == (1, TIME_NS)
    assert bench.faults() == []


@pytest.mark.parametrize("extra", ["nothing", "an attribute", "a size"])
def test_nothing_is_left_of_what_is_removed(bench: Bench, extra: str) -> None:
    """This includes files with more records than most; and the owner is no longer charged."""
    client = bench.client()
    accounts = bench.engine.services.quotas
    before = {account: (a.inodes, a.bytes) for account, a in accounts.listing()}
    inodes = bench.engine.progress.inodes
    ino = file_of(client, b"f")
    if extra == "an attribute":
        client.call(Op.SETXATTR, SetXattr(ino, b"user.a", b"b", 0))
    elif extra == "a size":
        client.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 12345, 0, 0, 0, 0, 0))
        bench.settle()
    assert not remove(client, removal(ino, b"f")).removal_errors
    bench.commit()
    snapshot = bench.store.snapshot()
    left = [key for key, _ in snapshot.range(b"A", b"[") if key[:1] in (b"I", b"D", b"X", b"O")]
    assert left == [inode_key(ROOT)]
    doomed = [unpack_layout(value) for _, value in snapshot.range(*all_of(b"Z"))]
    assert [layout.file_id for layout in doomed] == [ino]
    assert bench.engine.progress.inodes == inodes
    assert {account: (a.inodes, a.bytes) for account, a in accounts.listing()} == before


def test_one_that_is_open_is_kept(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    ino = file_of(one, b"f")
    two.call(Op.OPEN, Open(ino, False))
    remove(one, removal(ino, b"f"))
    left = unpack_attributes(two.call(Op.GETATTR, GetAttr(ino)).attributes)
    assert (left.nlink, left.ctime_ns) == (0, TIME_NS)
    assert ino not in bench.engine.sessions.reapable
    two.tell(Op.CLOSE, Close((ino,)))
    assert ino in bench.engine.sessions.reapable


def test_a_client_is_told_that_another_has_the_file_open(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    ino = file_of(one.client, b"f")
    two.client.call(Op.OPEN, Open(ino, False))

    def said() -> int:
        listed = one.client.call(Op.READDIR, ReadDir(ROOT, 0, 10))
        return unpack_attributes(listed.attributes).lease_flags

    assert said() & OPEN_ELSEWHERE
    assert one.client.lookup(ROOT, b"f").lease_flags & OPEN_ELSEWHERE
    two.client.tell(Op.CLOSE, Close((ino,)))
    assert not said() & OPEN_ELSEWHERE


def held_elsewhere(bench: Bench) -> tuple[Cached, Cached, int, int]:
    """A folder that one client holds exclusively, with a file whose attributes the other client
    holds."""
    one, two = Cached.of(bench), Cached.of(bench)
    folder = one.client.mkdir(ROOT, b"folder")
    ino = file_of(one.client, b"f", folder)
    two.client.call(Op.GETATTR, GetAttr(ino))
    assert two.held(ino) & LEASE_META
    one.client.send(Op.DELEGATE, Delegate(folder, 0))
    bench.settle()
    assert one.client.take().attributes
    assert one.held(folder) == LEASE_NAMER
    return one, two, folder, ino


def test_a_batch_waits_for_nobody_and_holders_are_told(bench: Bench) -> None:
    one, two, folder, ino = held_elsewhere(bench)
    assert remove(one.client, removal(ino, b"f", folder)).removal_errors == ()
    one.client.call(Op.RMDIR, RmDir(ROOT, b"folder"))
    (item,) = [item for item in two.recalled() if item.ino == ino]
    assert item.flags & LEASE_META
    sessions, leases = bench.engine.sessions, bench.engine.services.leases
    assert ino in sessions.orphans and leases.is_recalled(Ino(ino)), "it may say that it is open"
    two.answer(item)
    bench.settle()
    assert ino in sessions.reapable and not leases.is_recalled(Ino(ino))
    assert two.held(ino) & LEASE_META == 0


def test_a_holder_that_says_it_is_open_keeps_it(bench: Bench) -> None:
    one, two, folder, ino = held_elsewhere(bench)
    remove(one.client, removal(ino, b"f", folder))
    (item,) = [item for item in two.recalled() if item.ino == ino]
    two.answer(item, is_open=True)
    bench.settle()
    assert ino not in bench.engine.sessions.reapable
    assert unpack_attributes(two.client.call(Op.GETATTR, GetAttr(ino)).attributes).nlink == 0


def test_removals_survive_a_restart_by_replay(bench: Bench) -> None:
    client = bench.client()
    folder = client.mkdir(ROOT, b"folder")
    old = file_of(client, b"old", folder)
    bench.settle()
    (slot,) = slots_of(client, 1, folder)
    request = ChangeBatch(
        (birth(slot, b"new", folder),),
        (removal(old, b"old", folder), removal(slot.ino, b"new", folder, 1)),
    )
    sent = client.send(Op.CHANGE_BATCH, request)
    frame = client.take_frame()  # it is answered, and not committed

    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), client.session, client.request_id)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0, (folder,)))
    back.take()
    leases = after.engine.services.leases.of(SessionId(client.session))
    assert {lease.ino: lease.flags for lease in leases} == {folder: LEASE_NAMER}
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    assert back.replay(Op.CHANGE_BATCH, replay, sent).header.status == 0
    back.call(Op.REPLAY_DONE, Empty())
    assert not is_there(back, b"old", folder)
    assert not is_there(back, b"new", folder)
    back.tell(Op.CLOSE, Close((slot.ino,)))
    assert {old, slot.ino} <= after.engine.sessions.orphans
    assert slot.ino in after.engine.sessions.reapable
    assert after.faults() == []
