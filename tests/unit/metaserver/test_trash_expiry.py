"""The trash over time: what is due expires, what is durable stays, and a replay repeats nothing."""

from functools import partial

import pytest

from fscommon.errors import Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.codec import encode
from fscommon.wire.header import FLAG_REPLAY
from fscommon.wire.messages import Removed, Replay, Unlink
from fscommon.wire.ops import Op
from fscommon.wire.trash import TrashItem, TrashMark, TrashPurge, TrashRestore, TrashSet
from metaserver.records import aged_until, all_of
from metaserver.trash_expiry import _discard_all

from .bench import ROOT
from .test_trash import DAY_S, World


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_due_expires_and_no_more(world: World) -> None:
    world.enable(ROOT)
    early, late = world.file(b"early"), world.file(b"late")
    world.unlink(b"early")
    between_ns = world.bench.now_ns
    world.unlink(b"late")
    assert world.expire(ROOT, between_ns) == 1
    assert not world.is_there(early) and world.is_there(late)
    assert world.doomed() == 1 and world.trees()[ROOT].inodes == 1
    assert world.expire(ROOT, between_ns) == 0
    assert world.bench.faults() == []


def test_what_came_back_meanwhile_does_not_expire(world: World) -> None:
    world.enable(ROOT)
    ino = world.file(b"f")
    world.unlink(b"f")
    world.bench.settle()
    due = world.bench.engine.stored(aged_until(ROOT, world.bench.now_ns), 9)
    assert world.restore(world.entries(ROOT)[0]) is None
    refused: list[str] = []
    discard = partial(_discard_all, due, refused.append)
    world.bench.engine.system(discard, world.bench.time())
    assert refused == []
    assert world.look(b"f") == ino
    assert world.bench.faults() == []


def test_a_crash_in_the_middle_of_expiry_repeats_it(world: World) -> None:
    world.enable(ROOT)
    for number in range(5):
        world.file(b"%d" % number)
        world.unlink(b"%d" % number)
    assert world.expire(ROOT, world.bench.now_ns) == 5
    world.restart()  # this is before the commit
    world.came_back()
    assert world.trees()[ROOT].inodes == 5 and world.doomed() == 0
    assert world.expire(ROOT, world.bench.now_ns) == 5
    assert world.doomed() == 5
    world.restart()
    world.came_back()
    assert world.trees()[ROOT].inodes == 0 and world.trees()[ROOT].expiry_s == DAY_S
    assert world.bench.faults() == []


def test_a_replay_makes_the_entry_again(world: World) -> None:
    """The removal was answered and not durable, and the metaserver is killed."""
    world.enable(ROOT)
    ino = world.file(b"f")
    world.bench.settle()
    request = Unlink(ROOT, b"f")
    number = world.client.send(Op.UNLINK, request)
    reply: Removed = world.client.take()
    world.restart()
    assert world.bench.engine.progress.recovering
    assert world.refused(Op.TRASH_SET, TrashSet(ROOT, True, 5)) is Status.NOT_READY
    assert world.refused(Op.TRASH_PURGE, TrashPurge((TrashMark(1, b"f", ino),))) is Status.NOT_READY
    body = Replay(10**6, 0, encode(request), encode(reply))
    for _ in range(2):
        world.client.send(Op.UNLINK, body, flags=FLAG_REPLAY, request_id=number)
        assert unpack_attributes(world.client.take().attributes).nlink == 0
    world.client.request_id = number
    world.came_back()
    (entry,) = world.entries(ROOT)
    assert entry.ino == ino and world.trees()[ROOT].inodes == 1
    assert world.restore(entry) is None
    assert world.bench.faults() == []


def test_a_restore_is_durable_when_it_is_answered(world: World) -> None:
    world.enable(ROOT)
    ino = world.file(b"f")
    world.unlink(b"f")
    (entry,) = world.entries(ROOT)
    item = TrashItem(b"f", ino, b"f")
    world.admin.send(Op.TRASH_RESTORE, TrashRestore(ROOT, ROOT, (item,)))
    assert world.admin.received() == []
    world.bench.settle()
    world.admin.take()
    world.restart()
    world.came_back()
    assert world.look(b"f") == ino and world.entries(ROOT) == []
    assert entry.ino == ino
    assert world.bench.faults() == []


def test_fsck_finds_what_does_not_fit(world: World) -> None:
    world.enable(ROOT)
    world.file(b"f")
    world.unlink(b"f")
    assert world.bench.faults() == []
    kept = next(iter(world.bench.engine.stored(all_of(b"B"), 1)))[0]
    world.bench.store.commit([(kept, None)])
    faults = " ".join(world.bench.faults())
    assert "0 names" in faults and "is of no entry" in faults and "has 1 inodes" in faults
