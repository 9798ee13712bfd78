"""Truncates by lanes that are reported to the metaserver later: which calls wait for the report,
and what it says.
"""

import os

import pytest

from fsclient.fs.changes import Change
from fsclient.fs.inodes import merge_written
from fsclient.fs.ports import WRITTEN_CUT, Written
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.messages import COMMIT_MTIME, COMMIT_SIZE, SET_MTIME, SET_SIZE, Opened
from fscommon.wire.ops import Op

from .fakes import FakeWorld, layout, record

INO = 5
REACH = (900).to_bytes(8, "little")


def opened(file_id: int = 55, **fields: int) -> Opened:
    return Opened(record(INO, **fields), layout(file_id), b"c" * 64)


@pytest.fixture
async def world() -> FakeWorld:
    world = FakeWorld()
    world.meta.answers[Op.OPEN] = opened(size=900)
    await world.fs.files.open(INO, os.O_RDWR, kill_set_ids=False)
    return world


def test_a_size_that_was_cut_is_what_it_is() -> None:
    known = unpack_attributes(record(INO, size=900, mtime_ns=7))
    cut = Written(300, 8, COMMIT_SIZE | COMMIT_MTIME | WRITTEN_CUT)
    assert merge_written(known, cut).size == 300
    assert merge_written(known, Written(300, 8, COMMIT_SIZE)).size == 900


async def test_the_metaserver_is_told_with_what_was_there_before(world: FakeWorld) -> None:
    world.meta.answers[Op.SETATTR] = opened(66, size=300, change_version=9)
    world.fs.files.cuts.tell(1, INO, 300, 8, REACH)
    world.meta.deliver_all()
    (request,) = world.meta.requests(Op.SETATTR)
    assert (request.valid, request.size, request.mtime_ns) == (SET_SIZE | SET_MTIME, 300, 8)
    assert request.written_size == 900
    assert world.lanes.cuts_done == [(INO, 1, 0, True)]
    assert world.fs.inodes.opened(INO).file_id == 66


async def test_a_refusal_is_told_to_the_lanes(world: FakeWorld) -> None:
    world.meta.answers[Op.SETATTR] = FsError(Status.EIO)
    world.fs.files.cuts.tell(1, INO, 300, 8, REACH)
    world.meta.deliver_all()
    assert world.lanes.cuts_done == [(INO, 1, int(Status.EIO), False)]


async def test_of_a_closed_file_nobody_is_told(world: FakeWorld) -> None:
    world.fs.files.cuts.tell(1, INO + 1, 300, 8, REACH)
    assert world.lanes.cuts_done == [(INO + 1, 1, int(Status.ESTALE), False)]
    assert world.meta.requests(Op.SETATTR) == []


async def test_it_is_told_before_a_change_and_a_commit(world: FakeWorld) -> None:
    """Lanes make no more truncates until the report was answered."""
    drains: list[tuple[int, int]] = []
    files = world.fs.files

    async def drain(ino: int, *, sync: bool, commit: bool = False) -> None:
        drains.append((ino, list(world.lanes.cut_pauses).count(ino)))

    files.drains.drain = drain  # type: ignore[method-assign]
    world.meta.answers[Op.SETATTR] = opened(size=900)
    for step in (
        lambda: files.setattr(INO, Change(mode=0o600)),
        lambda: files.commit_written(INO),
        lambda: files.report_size(INO),
    ):
        world.lanes.untold_cuts = {INO}
        await step()
    assert drains == [(INO, 1)] * 3
    assert world.lanes.cut_pauses == []


async def test_targets_that_fail_a_cut_and_a_recall_fail_both_at_once(world: FakeWorld) -> None:
    """A recall sends bytes and size at the same time, and one error ends it."""
    world.lanes.untold_cuts = {INO}
    world.lanes.drain_status = int(Status.EIO)
    with pytest.raises(FsError, match="the targets failed"):
        await world.fs.recalls._caches.publish(INO)


async def test_nothing_of_an_untold_cut_is_taken_for_a_commit(world: FakeWorld) -> None:
    world.lanes.written[INO] = (300, 8, COMMIT_SIZE | WRITTEN_CUT)
    await world.fs.files.commit_written(INO)
    assert world.meta.requests(Op.COMMIT) == []
