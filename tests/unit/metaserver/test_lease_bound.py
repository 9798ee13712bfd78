"""A session at its bound of leases: for each new one the oldest is recalled, at a cost that does
not grow with their number.
"""

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator

import pytest

from fscommon.layout.attributes import LEASE_DATA, LEASE_ENTRIES, LEASE_META, LEASE_WRITER
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import ReturnItem
from metaserver.leases import bits, table
from metaserver.leases.holders import Held, Need
from metaserver.leases.table import Leases
from metaserver.sessions import Session, Sessions

READER = LEASE_META | LEASE_DATA
ONE = SessionId(1)
FILE = Ino(7)
BOUND = 1000


class CountedItems(ItemsView[Ino, Held]):
    def __init__(self, counted: "Counted") -> None:
        super().__init__(counted)
        self._counted = counted

    def __iter__(self) -> Iterator[tuple[Ino, Held]]:
        for item in OrderedDict.items(self._counted):
            self._counted.seen += 1
            yield item


class Counted(OrderedDict[Ino, Held]):
    """Counts the entries that are iterated one after another."""

    seen = 0

    # An OrderedDict can return no other view than its own, of a class that cannot be extended.
    def items(self) -> CountedItems:  # type: ignore[override]
        return CountedItems(self)


def make_leases(sessions: int = 1) -> Leases:
    known = Sessions(version=1)
    leases = Leases(known, duration_s=30.0, leases_max=BOUND)
    for number in range(1, sessions + 1):
        known.add(Session(SessionId(number), "client", 0, 0.0))
        leases.connected(SessionId(number))
    return leases


def _counting(function: Callable[[int, int], int], calls: list[int]) -> Callable[[int, int], int]:
    def counting(one: int, other: int) -> int:
        calls.append(one)
        return function(one, other)

    return counting


def test_the_oldest_is_asked_back_for_each_new_one() -> None:
    leases = make_leases()
    for ino in range(BOUND):
        leases.grant(ONE, Ino(ino), READER, 1, 0.0)
    assert not leases.unsent
    holder = leases._holders[ONE]
    counted = holder.leases = Counted(holder.leases)
    for ino in range(BOUND, 3 * BOUND):
        assert leases.grant(ONE, Ino(ino), READER, 1, 0.0) == READER
        (item,) = leases.unsent.pop(ONE)
        assert item.ino == ino - BOUND
        leases.returned(ONE, [ReturnItem(item.ino, item.flags, item.recall)], 0.0)
    assert leases.count == BOUND
    assert counted.seen <= 2 * BOUND * 8


def test_files_that_are_written_may_be_more() -> None:
    """Their writers would wait without end."""
    leases = make_leases()
    for ino in range(3 * BOUND):
        assert leases.grant(ONE, Ino(ino), LEASE_WRITER, 1, 0.0) == LEASE_WRITER
    assert leases.grant(ONE, Ino(-1), READER, 1, 0.0) == 0
    assert not leases.unsent
    leases.downgrade(ONE, map(Ino, range(BOUND)), 0.0)
    asked = {item.ino for item in leases.unsent.pop(ONE)}
    assert asked and asked <= set(range(BOUND))


def test_many_above_the_bound_are_asked_back_together() -> None:
    leases = make_leases()
    for ino in range(2 * BOUND):
        assert leases.grant(ONE, Ino(ino), READER, 1, 0.0) == READER
    rounds = 0
    while items := leases.unsent.pop(ONE, None):
        assert len(items) <= 512
        returned = [ReturnItem(item.ino, item.flags, item.recall) for item in items]
        leases.returned(ONE, returned, 0.0)
        rounds += 1
    assert leases.count == BOUND
    assert rounds <= 20
    assert leases.held(ONE, Ino(BOUND - 1)) == 0
    assert leases.held(ONE, Ino(BOUND)) == READER


def test_what_is_asked_for_again_is_young_again() -> None:
    leases = make_leases()
    for ino in [*range(BOUND), 0, BOUND]:
        assert leases.grant(ONE, Ino(ino), READER, 1, 0.0) == READER
    (item,) = leases.unsent.pop(ONE)
    assert item.ino == 1


def test_a_walk_through_a_large_tree_asks_nothing_back() -> None:
    leases = make_leases()
    for ino in range(5 * BOUND):
        leases.grant(ONE, Ino(ino), LEASE_META, 1, 0.0, is_look=True)
    assert leases.count == BOUND * 7 // 8
    assert not leases.unsent
    names = LEASE_META | LEASE_ENTRIES
    assert leases.grant(ONE, Ino(6 * BOUND), names, 1, 0.0, is_look=True) == names
    assert leases.grant(ONE, Ino(7 * BOUND), READER, 1, 0.0) == READER  # it is opened
    assert leases.grant(ONE, Ino(0), READER, 1, 0.0, is_look=True) == READER


def test_a_look_costs_the_same_whoever_else_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared request compares itself with no holder while no client holds an exclusive bit."""
    compared: list[int] = []
    for module in (table, bits):
        monkeypatch.setattr(module, "conflict", _counting(bits.conflict, compared))
    monkeypatch.setattr(table, "to_give_up", _counting(bits.to_give_up, compared))
    leases = make_leases(sessions=1001)
    for number in range(1, 1001):
        assert leases.admit(SessionId(number), [Need(FILE, READER)], 0.0) is None
        assert leases.grant(SessionId(number), FILE, READER, 1, 0.0) == READER
    assert not compared
    last = SessionId(1001)
    claim = leases.admit(last, [Need(FILE, LEASE_WRITER)], 0.0)
    assert claim is not None and len(claim.waits) == 1000
    for session, items in list(leases.unsent.items()):
        leases.returned(session, [ReturnItem(i.ino, i.flags, i.recall) for i in items], 0.0)
    assert leases.take_ready() == [claim]
    assert leases.grant(last, FILE, LEASE_WRITER, 1, 0.0, claim) == LEASE_WRITER
    assert leases.exclusive_behind(0, LEASE_WRITER & ~READER, 10) == [FILE]
    leases.cancel(claim)
    assert leases.admit(ONE, [Need(FILE, LEASE_DATA)], 0.0) is not None
    leases.downgrade(last, [FILE], 0.0)
    assert not leases.is_held(FILE, LEASE_WRITER & ~READER)
    assert not leases.exclusive_behind(0, LEASE_WRITER & ~READER, 10)


def test_files_opened_ahead_are_bounded() -> None:
    assert make_leases().room_ahead(ONE) == 1 << 21


def test_they_are_given_back_after_a_restart() -> None:
    leases = make_leases()
    for ino in range(2 * BOUND):
        leases.reassert(ONE, Ino(ino), LEASE_WRITER)
    assert all(leases.held(ONE, Ino(ino)) == LEASE_WRITER for ino in range(2 * BOUND))
