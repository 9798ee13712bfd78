"""A session at its bound of leases: for each new one the oldest is asked back, at a cost that does
not grow with how many there are."""

from collections.abc import ItemsView, Iterator
from typing import Any

from fscommon.layout.attributes import LEASE_DATA, LEASE_META
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
        for item in dict.items(self._counted):
            self._counted.seen += 1
            yield item


class Counted(dict[Ino, Any]):
    """Counts the entries that are looked at one after another."""

    seen = 0

    def items(self) -> ItemsView[Ino, Any]:
        return CountedItems(self)  # type: ignore[return-value]


def test_the_oldest_is_asked_back_for_each_new_one() -> None:
    sessions = Sessions(version=1)
    sessions.add(Session(ONE, "client", 0, 0.0))
    leases = Leases(sessions, duration_s=30.0, leases_max=BOUND)
    leases.connected(ONE)
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
