"""pyfuse3's handlers without a mount: numbers, errnos, interruption, bugs."""

import errno
from typing import Any, TypeVar

import pyfuse3
import pytest
import trio

from fsclient.fuse.operations import Operations
from fscommon.errors import FsError, Status
from fscommon.wire.messages import Entry, StatFsReply
from fscommon.wire.ops import Op

from . import native_rows as rows
from .fakes import DIRECTORY, Context, FakeLanes, FakeMetadata, make_fs, record
from .unasked_ports import UnaskedIo

T = TypeVar("T")
ROOT = 40


class FakeUpcalls(UnaskedIo):
    def __init__(self) -> None:
        self.uniques = {3: 1000}

    def upcall(self, slot: int) -> rows.Upcall:
        if slot not in self.uniques:
            raise ValueError(slot)
        return rows.Upcall(self.uniques[slot], 1, 3, 0, 77)


@pytest.fixture
def meta() -> FakeMetadata:
    return FakeMetadata()


@pytest.fixture
def upcalls() -> FakeUpcalls:
    return FakeUpcalls()


@pytest.fixture
def operations(meta: FakeMetadata, upcalls: FakeUpcalls) -> Operations:
    files = make_fs(meta, FakeLanes(), lambda _: None, believe_names_s=1.0)
    return Operations(files, upcalls, ROOT, 2.0)


async def test_root_has_two_numbers(operations: Operations, meta: FakeMetadata) -> None:
    meta.answers[Op.GETATTR] = lambda request: Entry(record(request.ino, mode=DIRECTORY))
    entry = await operations.getattr(1, Context())
    assert entry.st_ino == 1
    assert meta.requests(Op.GETATTR)[0].ino == ROOT


async def test_nothing_is_above_the_root(operations: Operations, meta: FakeMetadata) -> None:
    meta.answers[Op.GETATTR] = lambda request: Entry(record(request.ino, mode=DIRECTORY, parent=7))
    assert (await operations.lookup(1, b"..", Context())).st_ino == 1


async def test_timeouts(operations: Operations, meta: FakeMetadata) -> None:
    meta.answers[Op.LOOKUP] = Entry(record(5, mtime_ns=1_000_000_007))
    entry = await operations.lookup(1, b"f", Context())
    assert (entry.entry_timeout, entry.attr_timeout) == (1.0, 2.0)
    assert entry.st_mtime_ns == 1_000_000_007


@pytest.mark.parametrize("status", list(Status)[1:])
async def test_every_status_is_an_errno(
    operations: Operations, meta: FakeMetadata, status: Status
) -> None:
    meta.answers[Op.GETATTR] = FsError(status)
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await operations.getattr(5, Context())
    assert caught.value.errno == FsError(status).errno


NOT_ANSWERED = (Status.ETIMEDOUT, Status.ABORTED, Status.DISCONNECTED, Status.FENCED)


@pytest.mark.parametrize("status", [*NOT_ANSWERED, Status.ENOENT, Status.EACCES, Status.EIO])
async def test_a_name_that_nobody_looked_up_is_kept(
    operations: Operations, meta: FakeMetadata, status: Status
) -> None:
    """Linux detaches what is mounted below a name for any error other than ENOMEM and EINTR."""
    meta.answers[Op.LOOKUP] = FsError(status)
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await operations.lookup(1, b"f", Context())
    kept = status in NOT_ANSWERED
    assert caught.value.errno == (errno.ENOMEM if kept else FsError(status).errno)


async def test_a_bug_is_one_eio(operations: Operations, meta: FakeMetadata) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError

    seen: list[tuple[str, bool]] = []
    operations.observe = lambda name, _seconds, failed: seen.append((name, failed))
    meta.answers[Op.LOOKUP] = broken
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await operations.lookup(1, b"f", Context())
    assert caught.value.errno == errno.EIO
    assert seen == [("lookup", True)]
    assert operations.running_count == 0


class Stuck(FakeMetadata):
    async def call(self, op: Op, message: object, reply: type[T], *, urgent: bool = False) -> T:
        await trio.sleep_forever()


async def _errno_of_lookup(operations: Operations) -> int:
    try:
        await operations.lookup(1, b"f", Context())
    except pyfuse3.FUSEError as error:
        return int(error.errno)
    return 0


async def test_interrupt_ends_the_handler(upcalls: FakeUpcalls) -> None:
    files = make_fs(Stuck(), FakeLanes(), lambda _: None)
    operations = Operations(files, upcalls, ROOT, 1.0)
    outcome: list[int] = []

    async def look() -> None:
        outcome.append(await _errno_of_lookup(operations))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        operations.interrupt(3)
    assert outcome == [errno.EINTR]


async def test_interrupt_before_the_handler_started(upcalls: FakeUpcalls) -> None:
    files = make_fs(Stuck(), FakeLanes(), lambda _: None)
    operations = Operations(files, upcalls, ROOT, 1.0)
    operations.interrupt(3)
    with trio.fail_after(5):
        assert await _errno_of_lookup(operations) == errno.EINTR


async def test_late_interrupt_of_a_reused_slot_hits_nobody(
    operations: Operations, upcalls: FakeUpcalls, meta: FakeMetadata
) -> None:
    operations.interrupt(3)
    upcalls.uniques[3] = 2000  # another request has the slot now
    meta.answers[Op.LOOKUP] = Entry(record(5))
    assert (await operations.lookup(1, b"f", Context())).st_ino == 5


async def test_statfs(operations: Operations, meta: FakeMetadata) -> None:
    meta.answers[Op.STATFS] = StatFsReply(1 << 40, 1 << 39, 1 << 38, 100, 90)
    stat = await operations.statfs(Context())
    assert stat.f_blocks * stat.f_frsize == 1 << 40
    assert (stat.f_bavail * stat.f_frsize, stat.f_namemax) == (1 << 38, 255)
