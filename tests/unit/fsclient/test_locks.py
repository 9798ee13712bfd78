"""Locks of this client: how a descriptor that is being closed affects the next one."""

from typing import Any

import trio
import trio.testing

from fsclient.fs.locks import LockOwner, LockRequest
from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LockType
from fscommon.wire.locks import LockDone, LockGranted
from fscommon.wire.ops import Op
from tests.unit.fsclient.fakes import FakeLanes, FakeMetadata, make_fs

INO = 7


def flock(owner: int, fh: int) -> LockRequest:
    return LockRequest(LockOwner(INO, True, owner), fh, 0, 1 << 63, LockType.WRITE, 100 + owner)


async def test_a_lock_that_goes_while_another_is_refused_is_no_reason_to_refuse() -> None:
    """The RELEASE of the first arrives when the second was sent already."""
    meta, lanes = FakeMetadata(), FakeLanes()
    fs = make_fs(meta, lanes, lambda text: None)
    lanes.done = fs.drains.done
    refusals = [FsError(Status.EAGAIN)]

    def answer(request: Any) -> Any:
        return refusals.pop() if request.owner == 2 and refusals else LockDone(True)

    meta.answers[Op.LOCK_SET] = answer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, meta)
        await fs.locks.set(flock(1, 11), wait=False)
        nursery.cancel_scope.cancel()
    outcomes: list[str] = []

    async def second() -> None:
        await fs.locks.set(flock(2, 12), wait=False)
        outcomes.append("granted")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second)
            await trio.testing.wait_all_tasks_blocked()
            fs.locks.released(INO, 11)
            meta.deliver_all()
            while not outcomes:
                await trio.testing.wait_all_tasks_blocked()
                meta.deliver_all()
    assert refusals == []


async def test_what_is_free_and_letting_go_are_not_interrupted() -> None:
    meta = FakeMetadata()
    fs = make_fs(meta, FakeLanes(), lambda text: None)
    meta.answers[Op.LOCK_SET] = lambda _request: LockDone(True)
    unlocking = flock(1, 11)._replace(type=LockType.NONE)
    for request, wait in ((flock(1, 11), True), (flock(1, 11), False), (unlocking, True)):
        done = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, meta)
            with trio.CancelScope() as interrupted:
                interrupted.cancel()
                await fs.locks.set(request, wait=wait)
                done = True
            nursery.cancel_scope.cancel()
        assert done, request


async def test_a_wait_is_interrupted() -> None:
    meta = FakeMetadata()
    fs = make_fs(meta, FakeLanes(), lambda text: None)
    meta.answers[Op.LOCK_SET] = lambda _request: LockDone(False)
    meta.answers[Op.LOCK_CANCEL] = lambda _request: LockDone(False)
    meta.answers[Op.LOCK_EVENTS] = lambda _request: LockGranted(())
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, meta)
            with trio.CancelScope() as interrupted:
                interrupted.cancel()
                await fs.locks.set(flock(1, 11), wait=True)
            assert interrupted.cancelled_caught
            nursery.cancel_scope.cancel()


async def deliver(meta: FakeMetadata) -> None:
    while True:
        await trio.testing.wait_all_tasks_blocked()
        meta.deliver_all()
