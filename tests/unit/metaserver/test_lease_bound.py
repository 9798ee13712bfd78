"""A session at its bound of leases: for each new one the oldest is asked back, at a cost that does
not grow with how many there are."""

from collections import OrderedDict
from collections.abc import ItemsView, Iterator
from typing import Any

from fscommon.layout.attributes import LEASE_DATA, LEASE_META, LEASE_WRITER
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import ReturnItem
from metaserver.leases.table import Leases
from metaserver.sessions import Session, Sessions

READER = LEASE_META | LEASE_DATA
ONE = SessionId(1)
BOUND = 1000


class CountedItems:
    def __init__(self, counted: "Counted") -> None:
        self._counted = counted

    def __iter__(self) -> Iterator[Any]:
        for item in OrderedDict.items(self._counted):
            self._counted.seen += 1
            yield item


class Counted(OrderedDict[Ino, Any]):
    """Counts the entries that are looked at one after another."""

    seen = 0

    def items(self) -> ItemsView[Ino, Any]:
        return CountedItems(self)  # type: ignore[return-value]


def make_leases() -> Leases:
    sessions = Sessions(version=1)
    sessions.add(Session(ONE, "client", 0, 0.0))
    leases = Leases(sessions, duration_s=30.0, leases_max=BOUND)
    leases.connected(ONE)
    return leases


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
    """Their writers would wait for ever."""
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


def test_they_are_given_back_after_a_restart() -> None:
    leases = make_leases()
    leases.reassert(ONE, map(Ino, range(2 * BOUND)))
    assert all(leases.held(ONE, Ino(ino)) == LEASE_WRITER for ino in range(2 * BOUND))
