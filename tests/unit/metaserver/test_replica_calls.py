"""Calls to storage servers about replicated files: which objects they name, and where."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from fscommon.errors import FsError, Status, TransportError
from fscommon.layout.layout import VACANT, Layout
from fscommon.rpc.caller import EXCHANGES_MAX
from fscommon.types import TargetId
from metaserver.membership import Membership
from metaserver.records import ObjectName
from metaserver.storage import StorageCalls

from .test_truncation import NoCaller

MIB = 1 << 20
LAYOUT = Layout(7, MIB, 2, (1, 2, VACANT, 3), 2, 5, 0, 0b01, b"", (0, 3, 0, 1), 3, 2)
FIRST, SECOND, THIRD = ObjectName(1, 7, 0), ObjectName(2, 7, 0x300), ObjectName(3, 7, 0x101)


class Everywhere(Membership):
    """It has every target, each on a storage server of its own."""

    def __init__(self) -> None: ...

    def address_of(self, target: TargetId) -> str:
        return f"127.0.0.1:{target}"


class Noting(NoCaller):
    """Notes what is asked of it. failing: targets that fail."""

    def __init__(self, failing: dict[int, Exception]) -> None:
        super().__init__()
        self.failing = failing
        self.cut: list[tuple[ObjectName, int, int, bool]] = []
        self.written: list[tuple[ObjectName, bytes]] = []
        self.asked: list[tuple[str, ObjectName]] = []
        self.answers: dict[ObjectName, tuple[int | None, int]] = {}  # other ones to SYNC

    async def _note(self, what: str, name: ObjectName) -> None:
        await trio.lowlevel.checkpoint()
        if name.target in self.failing:
            raise self.failing[name.target]
        self.asked.append((what, name))

    async def truncate(
        self,
        target: int,
        file_id: int,
        stripe_index: int,
        *,
        length: int,
        epoch: int,
        must_exist: bool,
        timeout_s: float,
    ) -> bool:
        name = ObjectName(target, file_id, stripe_index)
        await self._note("truncate", name)
        self.cut.append((name, length, epoch, must_exist))
        return True

    async def write_durably(
        self,
        target: int,
        file_id: int,
        stripe_index: int,
        content: bytes,
        *,
        epoch: int,
        timeout_s: float,
    ) -> None:
        name = ObjectName(target, file_id, stripe_index)
        await self._note("write", name)
        self.written.append((name, content))

    async def delete_all(
        self, objects: Sequence[tuple[int, int, int]], *, timeout_s: float
    ) -> list[bool]:
        for one in objects:
            await self._note("delete", ObjectName(*one))
        return [True for _ in objects]

    async def drop_names(
        self, target: int, names: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> None:
        for name in names:
            await self._note("drop", ObjectName(target, *name))

    async def sync(
        self, target: int, file_id: int, object_number: int, *, epoch: int, timeout_s: float
    ) -> int:
        await self._note(f"sync at {epoch}", ObjectName(target, file_id, object_number))
        return 9

    async def sync_all(
        self, objects: Sequence[tuple[tuple[int, int, int], int]], *, timeout_s: float
    ) -> list[tuple[int | None, int]]:
        assert len(objects) <= EXCHANGES_MAX
        for name, epoch in objects:
            await self._note(f"sync at {epoch}", ObjectName(*name))
        return [self.answers.get(ObjectName(*name), (0, 9)) for name, _ in objects]

    async def raise_epoch(
        self,
        target: int,
        file_id: int,
        object_number: int,
        *,
        epoch: int,
        must_exist: bool = False,
        timeout_s: float,
    ) -> int:
        await self._note(f"raise to {epoch}", ObjectName(target, file_id, object_number))
        return 9


def calls_to(caller: Noting, monkeypatch: pytest.MonkeyPatch, tasks: trio.Nursery) -> StorageCalls:
    async def to(self: StorageCalls, address: str) -> Noting:
        await trio.lowlevel.checkpoint()
        return caller

    monkeypatch.setattr(StorageCalls, "_to", to)
    return StorageCalls(Everywhere(), key=b"", tasks=tasks)


async def test_a_cut_names_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Noting({})
    wanted = [(FIRST, MIB, 5, True), (SECOND, MIB, 5, True), (THIRD, 9, 5, False)]
    async with trio.open_nursery() as tasks:
        calls = calls_to(caller, monkeypatch, tasks)
        await calls.truncate(LAYOUT, MIB + 9)
        assert sorted(caller.cut) == wanted
        caller.cut.clear()
        assert await calls.cut_replicas(LAYOUT, MIB + 9) == {}
        assert sorted(caller.cut) == wanted
        caller.failing = {2: TransportError("no answer"), 3: FsError(Status.EIO)}
        failed = await calls.cut_replicas(LAYOUT, MIB + 9)
        assert set(failed) == {SECOND, THIRD} and failed[SECOND] == "no answer"


async def test_tiny_bytes_go_to_the_replicas_of_the_first_stripe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Noting({})
    tiny = replace(LAYOUT, inline=b"tiny")
    async with trio.open_nursery() as tasks:
        calls = calls_to(caller, monkeypatch, tasks)
        await calls.spill(tiny)
        assert sorted(caller.written) == [(FIRST, b"tiny"), (SECOND, b"tiny")]
        caller.failing = {1: TransportError("no answer")}
        assert set(await calls.cut_replicas(tiny, 4)) == {FIRST}
        assert caller.written[2:] == [(SECOND, b"tiny")]


async def test_deletions_name_what_was_dropped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Noting({})
    plain = Layout(8, MIB, 1, (2,))
    dropped = [ObjectName(3, 7, 1)]
    async with trio.open_nursery() as tasks:
        calls = calls_to(caller, monkeypatch, tasks)
        assert await calls.delete_all([LAYOUT, plain], [dropped, []]) == ["", ""]
        names = {name for _, name in caller.asked}
        assert names == {FIRST, SECOND, THIRD, ObjectName(2, 8, 0), *dropped}
        caller.failing = {3: TransportError("no answer")}
        assert await calls.delete_all([LAYOUT, plain]) == ["no answer", ""]


async def test_other_calls_name_single_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Noting({})
    async with trio.open_nursery() as tasks:
        calls = calls_to(caller, monkeypatch, tasks)
        await calls.drop_names(3, [THIRD, THIRD._replace(number=5)])
        assert (
            await calls.sync(SECOND, 4) == await calls.raise_epoch(FIRST, 6, must_exist=True) == 9
        )
    assert caller.asked == [
        ("drop", THIRD),
        ("drop", THIRD._replace(number=5)),
        ("sync at 4", SECOND),
        ("raise to 6", FIRST),
    ]


async def test_many_are_synced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has an answer of its own, in the order of the question."""
    caller = Noting({3: TransportError("no answer")})
    caller.answers = {FIRST: (Status.NO_OBJECT, 0), SECOND: (None, 0)}
    many = [(ObjectName(4, file_id, 0), 1) for file_id in range(2 * EXCHANGES_MAX + 1)]
    async with trio.open_nursery() as tasks:
        calls = calls_to(caller, monkeypatch, tasks)
        refused, late, lost, *done = await calls.sync_all(
            [(FIRST, 5), (SECOND, 5), (THIRD, 5), *many]
        )
        assert await calls.sync_all([]) == []
    assert isinstance(refused, FsError) and refused.status is Status.NO_OBJECT
    assert isinstance(late, TransportError) and "did not answer SYNC" in str(late)
    assert str(lost) == "no answer" and done == [9] * len(many)
    assert [name for _, name in caller.asked if name.target == 4] == [name for name, _ in many]
