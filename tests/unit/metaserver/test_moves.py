"""CHANGE_BATCH with names that a client changed within a directory by itself: order, invalid
requests, other holders of the inodes, restart (docs/decisions/0025-renames.md).
"""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_META, unpack_attributes
from fscommon.types import Ino
from fscommon.wire.births import ChangeBatch, Changed, Move, Setting
from fscommon.wire.codec import encode
from fscommon.wire.messages import (
    SET_CTIME,
    SET_FLAGS,
    SET_MODE,
    Close,
    Empty,
    GetAttr,
    Link,
    Open,
    Rename,
    Replay,
    SessionOpen,
    SetAttr,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.namespace.links import LINGER_S

from .bench import ROOT, Bench, Client
from .test_leases import Cached
from .test_removals import TIME_NS, birth, file_of, held_elsewhere, is_there, removal, slots_of


@pytest.fixture
def bench() -> Bench:
    return Bench()


def moved(ino: int, name: bytes, new_name: bytes, replaced: int = 0, parent: int = ROOT) -> Move:
    return Move(parent, name, new_name, ino, replaced, TIME_NS, 0)


def move(client: Client, *moves: Move) -> Changed:
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch((), (), (), moves))
    return reply


def test_a_name_is_another_one_and_the_directory_says_when(bench: Bench) -> None:
    client = bench.client()
    ino = file_of(client, b"old")
    before = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    version = client.lookup(ROOT, b"old").change_version
    reply = move(client, moved(ino, b"old", b"new"))
    assert reply.move_errors == ()
    assert unpack_attributes(reply.parents).mtime_ns == TIME_NS
    assert not is_there(client, b"old")
    now = client.lookup(ROOT, b"new")
    assert (now.ino, now.nlink, now.ctime_ns) == (ino, 1, TIME_NS)
    assert now.change_version == version + 1
    after = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    assert (after.mtime_ns, after.ctime_ns, after.nlink) == (TIME_NS, TIME_NS, before.nlink)
    assert after.change_version == before.change_version + 1
    assert bench.engine.progress.inodes == 2
    assert bench.faults() == []


def test_what_had_the_new_name_is_gone(bench: Bench) -> None:
    client = bench.client()
    ino, other = file_of(client, b"old"), file_of(client, b"new")
    assert move(client, moved(ino, b"old", b"new", other)).move_errors == ()
    assert client.lookup(ROOT, b"new").ino == ino
    assert not is_there(client, b"old")
    assert other in bench.engine.sessions.reapable
    assert bench.faults() == []


@pytest.mark.parametrize("by", ["rename", "batch"])
def test_what_is_replaced_may_be_opened_for_a_moment(bench: Bench, by: str) -> None:
    """A client that looked up its name before opens it: it sees the old file, not an error."""
    client, reader = bench.client(), bench.client()
    ino, other = file_of(client, b"old"), file_of(client, b"new")
    assert reader.lookup(ROOT, b"new").ino == other
    if by == "rename":
        client.call(Op.RENAME, Rename(ROOT, b"old", ROOT, b"new", 0))
    else:
        move(client, moved(ino, b"old", b"new", other))
    sessions = bench.engine.sessions
    assert sessions.lingers(Ino(other), bench.now_s)
    assert not sessions.lingers(Ino(other), bench.now_s + LINGER_S)
    left = unpack_attributes(reader.call(Op.OPEN, Open(other, False)).attributes)
    assert left.nlink == 0
    assert other not in sessions.reapable
    reader.tell(Op.CLOSE, Close((other,)))
    assert other in sessions.reapable
    sessions.reaped(Ino(other))
    assert not sessions.lingers(Ino(other), bench.now_s)


def test_what_is_removed_does_not_linger(bench: Bench) -> None:
    client = bench.client()
    ino = file_of(client, b"file")
    client.call(Op.UNLINK, Unlink(ROOT, b"file"))
    with pytest.raises(FsError) as refused:
        client.call(Op.OPEN, Open(ino, False))
    assert refused.value.status is Status.ESTALE


def test_births_removals_and_moves_mix_in_order(bench: Bench) -> None:
    """A program that replaces a file again and again causes this."""
    client = bench.client()
    one, two, three = slots_of(client, 3)
    births = (birth(one, b"t"), birth(two, b"t"), birth(three, b"t"))
    moves = (
        replace(moved(one.ino, b"t", b"f"), after=1),
        replace(moved(two.ino, b"t", b"f", one.ino), after=2),
        replace(moved(three.ino, b"t", b"g"), after=4),  # "f" was removed before
        replace(moved(three.ino, b"g", b"f"), after=4),
    )
    removals = (removal(two.ino, b"f", after=2),)
    reply = client.call(Op.CHANGE_BATCH, ChangeBatch(births, removals, (), moves))
    assert (reply.errors, reply.removal_errors, reply.move_errors) == ((), (), ())
    assert client.lookup(ROOT, b"f").ino == three.ino
    assert not is_there(client, b"t")
    assert not is_there(client, b"g")
    client.tell(Op.CLOSE, Close((one.ino, two.ino, three.ino)))
    assert {one.ino, two.ino} <= bench.engine.sessions.reapable
    assert bench.faults() == []


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"name": b"none"}, Status.ENOENT),
        ({"name": b"other"}, Status.ESTALE),
        ({"new_name": b"other"}, Status.EEXIST),
        ({"new_name": b"a/b"}, Status.EINVAL),
        ({"new_name": b"n" * 256}, Status.ENAMETOOLONG),
        ({"parent": 1 << 40}, Status.ESTALE),
        ({"replaced": 1 << 40}, Status.ESTALE),
        ({"name": b"protected", "ino": 0}, Status.EPERM),
        ({"name": b"folder", "ino": 0}, Status.EISDIR),
        ({"new_name": b"protected", "replaced": -1}, Status.EPERM),
        ({"new_name": b"folder", "replaced": -1}, Status.EISDIR),
    ],
)
def test_a_wrong_move_fails_alone(bench: Bench, wrong: dict[str, object], status: Status) -> None:
    client = bench.client()
    good, bad = file_of(client, b"good"), file_of(client, b"bad")
    inos = {b"protected": file_of(client, b"protected"), b"folder": client.mkdir(ROOT, b"folder")}
    file_of(client, b"other")
    immutable = SetAttr(inos[b"protected"], SET_FLAGS, 0, 0, 0, 0, 0, 0, 0, 0, 0, inode_flags=0x10)
    client.call(Op.SETATTR, immutable)
    asked = replace(moved(bad, b"bad", b"new"), **wrong)  # type: ignore[arg-type]
    asked = replace(asked, ino=asked.ino or inos[asked.name])
    if asked.replaced < 0:
        asked = replace(asked, replaced=inos[asked.new_name])
    reply = move(client, asked, moved(good, b"good", b"better"))
    assert reply.move_errors == (status, 0)
    assert is_there(client, b"better")
    assert is_there(client, b"bad")
    assert not is_there(client, b"new")
    assert bench.faults() == []


@pytest.mark.parametrize(
    "bad",
    [
        replace(moved(2, b"f", b"g"), after=1),
        replace(moved(2, b"f", b"g"), after=-1),
        replace(moved(2, b"f", b"g"), time_ns=1 << 63),
        replace(moved(2, b"f", b"g"), parent=-1),
        replace(moved(2, b"f", b"g"), replaced=-1),
        moved(2, b"f", b"g", 2),
    ],
)
def test_a_batch_that_makes_no_sense_does_nothing(bench: Bench, bad: Move) -> None:
    client = bench.client()
    assert file_of(client, b"f") == 2
    with pytest.raises(FsError) as refused:
        move(client, bad)
    assert refused.value.status is Status.BAD_REQUEST
    assert is_there(client, b"f")


def test_moves_out_of_order_do_nothing(bench: Bench) -> None:
    client = bench.client()
    (slot,) = slots_of(client, 1)
    moves = (replace(moved(slot.ino, b"a", b"b"), after=1), moved(slot.ino, b"b", b"a"))
    with pytest.raises(FsError, match="in order"):
        client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a"),), (), (), moves))


def test_one_of_several_names(bench: Bench) -> None:
    client = bench.client()
    ino = file_of(client, b"f")
    client.call(Op.LINK, Link(ino, ROOT, b"g"))
    move(client, moved(ino, b"f", b"h"))
    assert client.lookup(ROOT, b"g").nlink == client.lookup(ROOT, b"h").nlink == 2
    assert not is_there(client, b"f")
    assert bench.faults() == []


def test_a_setting_of_before_does_not_take_ctime_back(bench: Bench) -> None:
    """Settings come after the moves of their batch."""
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    early = Setting(ino, SET_MODE | SET_CTIME, 0o600, 0, 0, 0, 0, TIME_NS - 5, 0)
    reply = client.call(Op.CHANGE_BATCH, ChangeBatch((), (), (early,), (moved(ino, b"f", b"g"),)))
    assert (reply.setting_errors, reply.move_errors) == ((), ())
    now = client.lookup(ROOT, b"g")
    assert (now.ctime_ns, now.mode & 0o777) == (TIME_NS, 0o600)


def test_one_that_is_open_and_replaced_is_kept(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    ino, other = file_of(one, b"old"), file_of(one, b"new")
    two.call(Op.OPEN, Open(other, False))
    move(one, moved(ino, b"old", b"new", other))
    left = unpack_attributes(two.call(Op.GETATTR, GetAttr(other)).attributes)
    assert (left.nlink, left.ctime_ns) == (0, TIME_NS)
    assert other not in bench.engine.sessions.reapable
    two.tell(Op.CLOSE, Close((other,)))
    assert other in bench.engine.sessions.reapable


def test_a_batch_waits_for_nobody_and_holders_are_told(bench: Bench) -> None:
    one, two, folder, ino = held_elsewhere(bench)
    assert move(one.client, moved(ino, b"f", b"g", parent=folder)).move_errors == ()
    (item,) = [item for item in two.recalled() if item.ino == ino]
    assert item.flags & LEASE_META
    two.answer(item)
    bench.settle()
    assert not two.held(ino) & LEASE_META
    assert unpack_attributes(two.client.call(Op.GETATTR, GetAttr(ino)).attributes).ctime_ns == (
        TIME_NS
    )


def test_names_of_the_directory_are_recalled_from_nobody_else(bench: Bench) -> None:
    """The sender of a batch holds the directory; a sender that does not waits for the holder."""
    one, two, folder, ino = held_elsewhere(bench)
    two.client.send(
        Op.CHANGE_BATCH, ChangeBatch((), (), (), (moved(ino, b"f", b"g", parent=folder),))
    )
    bench.settle()
    (item,) = [item for item in one.recalled() if item.ino == folder]
    one.answer(item)
    bench.settle()
    assert two.client.take().move_errors == ()
    assert is_there(Cached.of(bench).client, b"g", folder)


def test_moves_survive_a_restart_by_replay(bench: Bench) -> None:
    client = bench.client()
    folder = client.mkdir(ROOT, b"folder")
    old = file_of(client, b"final", folder)
    bench.settle()
    (slot,) = slots_of(client, 1, folder)
    request = ChangeBatch(
        (birth(slot, b"new", folder),),
        (),
        (),
        (replace(moved(slot.ino, b"new", b"final", old, folder), after=1),),
    )
    sent = client.send(Op.CHANGE_BATCH, request)
    frame = client.take_frame()  # it is answered, and not committed

    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), client.session, client.request_id)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0, (folder,)))
    back.take()
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    assert back.replay(Op.CHANGE_BATCH, replay, sent).header.status == 0
    back.call(Op.REPLAY_DONE, Empty())
    assert back.lookup(folder, b"final").ino == slot.ino
    assert not is_there(back, b"new", folder)
    assert old in after.engine.sessions.orphans
    assert after.faults() == []
